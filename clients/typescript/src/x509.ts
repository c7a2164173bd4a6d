/**
 * Names in certificates, read from the certificate's own bytes (docs/transport.md, "Who may
 * serve"). Signatures, times and purposes are for the TLS library.
 */

import { SecAggError } from './errors.js';

/** A party as its certificate names it. */
export interface Party {
  readonly role: 'client' | 'server';
  readonly trustDomain: string;
  readonly name: string;
  /** DNS names of the certificate. */
  readonly hosts: readonly string[];
  /** IP addresses of the certificate, as 4 or 16 bytes. */
  readonly addresses: readonly Uint8Array[];
}

interface Element {
  readonly tag: number;
  readonly content: Uint8Array;
}

function bad(what: string): never {
  throw new SecAggError('BAD_CERTIFICATE', `the certificate ${what}`);
}

/** Splits DER into its elements; definite lengths of at most 3 bytes. */
function elements(bytes: Uint8Array): Element[] {
  const out: Element[] = [];
  let at = 0;
  while (at < bytes.length) {
    const tag = bytes[at++]!;
    let length = bytes[at++] ?? bad('is cut short');
    if (length >= 128) {
      const count = length - 128;
      if (count < 1 || count > 3 || at + count > bytes.length) bad('is not DER');
      length = 0;
      for (let i = 0; i < count; i++) length = length * 256 + bytes[at++]!;
    }
    if (at + length > bytes.length) bad('is cut short');
    out.push({ tag, content: bytes.subarray(at, at + length) });
    at += length;
  }
  return out;
}

const SEQUENCE = 0x30;
const OBJECT_ID = 0x06;
const OCTETS = 0x04;
const EXTENSIONS = 0xa3;
const DNS_NAME = 0x82;
const URI = 0x86;
const IP_ADDRESS = 0x87;
/** 2.5.29.17, subject alternative name. */
const ALTERNATIVE_NAME = '551d11';

function only(found: readonly Element[], tag: number): Uint8Array {
  const first = found[0];
  if (found.length !== 1 || first === undefined || first.tag !== tag) bad('is not X.509');
  return first.content;
}

function alternativeNames(der: Uint8Array): Element[] {
  const certificate = elements(only(elements(der), SEQUENCE));
  const body = elements(only(certificate.slice(0, 1), SEQUENCE));
  const wrapped = body.filter(({ tag }) => tag === EXTENSIONS);
  if (wrapped.length !== 1) bad('names no party: it has no extensions');
  const names: Element[] = [];
  let found = 0;
  for (const extension of elements(only(elements(wrapped[0]!.content), SEQUENCE))) {
    const parts = elements(extension.content);
    const id = parts[0];
    const value = parts.at(-1);
    if (id?.tag !== OBJECT_ID || value?.tag !== OCTETS) bad('has a malformed extension');
    const hex = [...id.content].map((byte) => byte.toString(16).padStart(2, '0')).join('');
    if (hex !== ALTERNATIVE_NAME) continue;
    found++;
    names.push(...elements(only(elements(value.content), SEQUENCE)));
  }
  if (found > 1) bad('has two lists of names');
  return names;
}

function asciiOf(bytes: Uint8Array): string {
  if (bytes.some((byte) => byte < 33 || byte > 126)) bad('has a name that cannot be printed');
  return String.fromCharCode(...bytes);
}

const PARTY =
  /^(?:secagg|spiffe):\/\/([a-z0-9._-]{1,255})\/(client|server)\/([A-Za-z0-9._-]{1,255})$/;
/** A label of a trust domain is a DNS label in which _ may stand for -. */
const DOMAIN = /^[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?$/;
const MOST_DNS_NAME = 253;
const LABEL = /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/;
const RESERVED = '.secagg.internal';

/** Alternative names of a certificate that can name a party. */
export interface CertificateNames {
  readonly uris: readonly string[];
  readonly hosts: readonly string[];
  readonly addresses: readonly Uint8Array[];
}

/** Reads the alternative names of a certificate, DER. */
export function certificateNames(der: Uint8Array): CertificateNames {
  const names = alternativeNames(der);
  const contents = (tag: number) =>
    names.filter((one) => one.tag === tag).map((one) => one.content);
  return {
    uris: contents(URI).map(asciiOf),
    hosts: contents(DNS_NAME).map(asciiOf),
    addresses: contents(IP_ADDRESS),
  };
}

/**
 * Says whom alternative names name (R10.1-2): exactly one URI of the form
 * `secagg://<trust-domain>/<role>/<name>`, and for a server the DNS name that goes with it.
 *
 * @throws SecAggError BAD_CERTIFICATE
 */
export function partyOf({ uris, hosts, addresses }: CertificateNames): Party {
  const match = uris.length === 1 ? PARTY.exec(uris[0]!) : null;
  if (match === null) bad('names no party, or several');
  const [, trustDomain, role, name] = match as unknown as [
    string,
    string,
    'client' | 'server',
    string,
  ];
  for (const part of [trustDomain, name]) {
    if (part === '.' || part === '..' || part.toLowerCase().includes(RESERVED)) {
      bad('holds a name that is reserved');
    }
  }
  if (!trustDomain.split('.').every((label) => DOMAIN.test(label))) bad('is of no trust domain');
  const own = `${name}.${trustDomain}.server${RESERVED}`;
  const lower = hosts.map((host) => host.toLowerCase());
  if (
    role === 'server' &&
    (!LABEL.test(name) || own.length > MOST_DNS_NAME || !lower.includes(own))
  ) {
    bad(`of a server lacks its DNS name ${own}`);
  }
  const allowed = role === 'server' ? own : '';
  if (lower.some((host) => host.includes(RESERVED) && host !== allowed)) {
    bad('holds a DNS name that is reserved for another party');
  }
  return { role, trustDomain, name, hosts: lower, addresses };
}

/**
 * Refuses a peer that is no server of a trust domain, or not the one that was told (R10.1-3).
 *
 * @param told Name of the one aggregator to accept; undefined for any.
 */
export function checkServer(
  names: CertificateNames,
  trustDomain: string,
  told: string | undefined,
): Party {
  const party = partyOf(names);
  if (party.role !== 'server' || party.trustDomain !== trustDomain) {
    bad(`of the peer is not of a server of ${trustDomain}`);
  }
  if (told !== undefined && party.name !== told) {
    bad(`of the aggregator is for ${party.name}, and not for ${told}`);
  }
  return party;
}

/** Reads the first certificate of a PEM file as DER. */
export function firstCertificate(pem: string): Uint8Array {
  const match = /-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----/.exec(pem);
  if (match === null) bad('file holds no certificate');
  return Uint8Array.from(atob(match[1]!.replace(/\s/g, '')), (c) => c.charCodeAt(0));
}

function addressBytes(host: string): Uint8Array | undefined {
  const four = /^(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$/.exec(host);
  if (four !== null) {
    const bytes = four.slice(1).map(Number);
    return bytes.every((byte) => byte < 256) ? Uint8Array.from(bytes) : undefined;
  }
  if (!host.includes(':')) return undefined;
  const [head, tail, ...more] = host.split('::');
  const groups = (text: string | undefined): string[] =>
    text === undefined || text === '' ? [] : text.split(':');
  const front = groups(head);
  const back = groups(tail);
  const missing = 8 - front.length - back.length;
  if (more.length > 0 || (tail === undefined ? missing !== 0 : missing < 1)) return undefined;
  const words = [...front, ...Array<string>(missing).fill('0'), ...back];
  if (!words.every((word) => /^[0-9a-fA-F]{1,4}$/.test(word))) return undefined;
  return Uint8Array.from(
    words.flatMap((word) => {
      const value = Number.parseInt(word, 16);
      return [value >> 8, value & 255];
    }),
  );
}

/** Says whether a certificate is for a host, as DNS name or as address; no wildcards. */
export function isForHost(party: Party, host: string): boolean {
  const address = addressBytes(host);
  if (address !== undefined) {
    return party.addresses.some(
      (one) => one.length === address.length && one.every((byte, i) => byte === address[i]),
    );
  }
  return party.hosts.some((one) => one === host.toLowerCase());
}
