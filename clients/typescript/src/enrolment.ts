/** Enrolment requests, credentials and revocation lists (PROTOCOL §2.1). */

import {
  badEncoding,
  blob,
  concat,
  equal,
  Reader,
  text,
  u32,
  u64,
  u8,
  type Bytes,
} from './bytes.js';
import { ed25519Verify, isEd25519Key } from './crypto.js';
import { refuse } from './errors.js';
import { sha256, tag } from './hash.js';
import type { Signer } from './signer.js';
import type { Trust } from './parameters.js';

/** Names of clients and trust domains in requests and lists. */
const NAME = /^[A-Za-z0-9._-]{1,255}$/;
/** A longer list is refused before it is read. */
const MOST_LIST_BYTES = 4 << 20;

/** Says whether a name is one that an issuer gives (R2.1-2). */
export function isEnrolledName(name: string): boolean {
  return NAME.test(name);
}

/** A client's request for a credential. */
export interface EnrolmentRequest {
  readonly trustDomain: string;
  readonly name: string;
  /** Public Ed25519 key, 32 bytes. */
  readonly key: Bytes;
  /** Seconds since 1970. */
  readonly madeAt: bigint;
  readonly signature: Bytes;
}

function requestFields(trustDomain: string, name: string, key: Uint8Array, madeAt: bigint): Bytes {
  return concat(u8(1), text(trustDomain), text(name), key, u64(madeAt));
}

/** Makes a request, signed by the key in it. The issuer signs it with `secagg pki enrol sign`. */
export async function makeEnrolmentRequest(
  trustDomain: string,
  name: string,
  madeAt: bigint,
  signer: Signer,
): Promise<Bytes> {
  if (!isEnrolledName(trustDomain) || !isEnrolledName(name)) {
    badEncoding('name and trust domain of a request hold letters, digits and ._- only');
  }
  const fields = requestFields(trustDomain, name, signer.publicKey, madeAt);
  const signature = await signer.sign(concat(tag('client', 'enrolment request', 0), fields));
  return concat(fields, signature);
}

/** Decodes a request; its signature is not looked at. */
export function decodeEnrolmentRequest(request: Uint8Array): EnrolmentRequest {
  const reader = new Reader(request, 'the enrolment request');
  if (reader.u8() !== 1) badEncoding('an enrolment request of another form');
  const trustDomain = reader.text(1, 255);
  const name = reader.text(1, 255);
  const key = reader.take(32);
  const madeAt = reader.u64();
  const signature = reader.take(64);
  reader.end();
  if (!isEnrolledName(trustDomain) || !isEnrolledName(name)) {
    badEncoding('an enrolment request with a name that no issuer gives');
  }
  return { trustDomain, name, key, madeAt, signature };
}

/** Says whether the signature of a request holds under the key in it. */
export function enrolmentRequestHolds(request: EnrolmentRequest): boolean {
  const fields = requestFields(request.trustDomain, request.name, request.key, request.madeAt);
  const signed = concat(tag('client', 'enrolment request', 0), fields);
  return ed25519Verify(request.key, signed, request.signature);
}

/** Bytes of a credential. */
export const CREDENTIAL_BYTES = 116;

/** A statement of the issuer: this name signs with this key. */
export interface Credential {
  readonly key: Bytes;
  readonly notBefore: bigint;
  readonly notAfter: bigint;
  readonly serial: number;
  readonly signature: Bytes;
}

/** Reads a credential of 116 bytes. */
export function readCredential(reader: Reader): Credential {
  return {
    key: reader.take(32),
    notBefore: reader.u64(),
    notAfter: reader.u64(),
    serial: reader.u32(),
    signature: reader.take(64),
  };
}

/** Encodes a credential. */
export function encodeCredential(credential: Credential): Bytes {
  return concat(
    credential.key,
    u64(credential.notBefore),
    u64(credential.notAfter),
    u32(credential.serial),
    credential.signature,
  );
}

/** A credential as its holder keeps it, with the name that it is for. */
export interface HeldCredential {
  readonly trustDomain: string;
  readonly name: string;
  readonly credential: Credential;
}

/** Decodes a holder's file, `credential.bin`. */
export function decodeHeldCredential(bytes: Uint8Array): HeldCredential {
  const reader = new Reader(bytes, 'the credential');
  if (reader.u8() !== 1) badEncoding('a credential of another form');
  const trustDomain = reader.text(1, 255);
  const name = reader.text(1, 255);
  const credential = readCredential(reader);
  reader.end();
  return { trustDomain, name, credential };
}

/** Encodes a holder's file. */
export function encodeHeldCredential(held: HeldCredential): Bytes {
  return concat(u8(1), text(held.trustDomain), text(held.name), encodeCredential(held.credential));
}

function credentialSigned(trust: Trust, identity: string, credential: Credential): Bytes {
  return concat(
    tag('issuer', 'credential', 0),
    text(trust.trustDomain),
    text(identity),
    credential.key,
    u64(credential.notBefore),
    u64(credential.notAfter),
    u32(credential.serial),
  );
}

/** Remembers credentials that were verified, by all that the signature depends on (R2.1-8). */
export class VerifiedCredentials {
  readonly #known = new Set<string>();
  readonly #most: number;

  /** @param most Credentials that are remembered; beyond it, all are forgotten. */
  constructor(most = 65535) {
    this.#most = most;
  }

  /** Verifies a signature by the enrolment key, or remembers that it holds. */
  holds(enrolmentKey: Uint8Array, signed: Uint8Array, signature: Uint8Array): boolean {
    const id = String.fromCharCode(...sha256(concat(enrolmentKey, signed, signature)));
    if (this.#known.has(id)) return true;
    if (!ed25519Verify(enrolmentKey, signed, signature)) return false;
    if (this.#known.size >= this.#most) this.#known.clear();
    this.#known.add(id);
    return true;
  }
}

/**
 * Checks one credential by the trust of an offer, R2.1-2 to R2.1-6 in this order.
 *
 * @param sessionEnd Time at which it must be valid, of the offer.
 * @param revoked Serials of the list that the offer names.
 */
export function checkCredential(
  trust: Trust,
  identity: string,
  credential: Credential,
  sessionEnd: bigint,
  revoked: ReadonlySet<number>,
  verified: VerifiedCredentials,
): void {
  const fail = (rule: string, what: string): never =>
    refuse('BAD_CREDENTIAL', rule, `the credential of ${printable(identity)} ${what}`);
  if (!isEnrolledName(identity)) fail('R2.1-2', 'is for a name that no issuer gives');
  if (credential.notBefore > sessionEnd || sessionEnd > credential.notAfter) {
    fail('R2.1-3', 'is not valid at the end of the session');
  }
  if (revoked.has(credential.serial)) fail('R2.1-4', 'is revoked');
  if (!isEd25519Key(credential.key)) fail('R2.1-5', 'holds no key that can sign');
  const signed = credentialSigned(trust, identity, credential);
  if (!verified.holds(trust.enrolmentKey, signed, credential.signature)) {
    fail('R2.1-6', 'is not signed by the enrolment key');
  }
}

/** What of a peer's text may stand in an error. */
export function printable(value: string): string {
  return value.replace(/[^\x20-\x7e]/gu, '?').slice(0, 255);
}

/** A decoded revocation list. */
export interface RevocationList {
  readonly trustDomain: string;
  readonly number: number;
  readonly madeAt: bigint;
  /** Serials, strictly ascending. */
  readonly serials: readonly number[];
  readonly signature: Bytes;
}

/** Decodes a revocation list; its signature is not looked at. */
export function decodeRevocationList(list: Uint8Array): RevocationList {
  if (list.length > MOST_LIST_BYTES) badEncoding('a revocation list of more than 4 MiB');
  const reader = new Reader(list, 'the revocation list');
  if (reader.u8() !== 1) badEncoding('a revocation list of another form');
  const trustDomain = reader.text(1, 255);
  const number = reader.u32();
  const madeAt = reader.u64();
  const count = reader.count(reader.u32(), 4);
  const serials: number[] = [];
  for (let i = 0; i < count; i++) serials.push(reader.u32());
  const signature = reader.take(64);
  reader.end();
  if (number === 0) badEncoding('a revocation list of number 0');
  if (!isEnrolledName(trustDomain)) badEncoding('a revocation list of no trust domain');
  if (serials.some((serial, i) => i > 0 && serial <= serials[i - 1]!)) {
    badEncoding('a revocation list whose serials do not ascend');
  }
  return { trustDomain, number, madeAt, serials, signature };
}

/**
 * Checks the revocation list that an offer names, and returns it (R2.1-0, BAD_CREDENTIAL).
 *
 * @param list The whole list, or null where there is none.
 * @returns The list, or null where the trust names none.
 */
export function checkRevocationList(trust: Trust, list: Uint8Array | null): RevocationList | null {
  const fail = (what: string): never =>
    refuse('BAD_CREDENTIAL', 'R2.1-0', `the revocation list ${what}`);
  if (trust.revocationNumber === 0) return list === null ? null : fail('is one that none names');
  if (list === null) return fail('is missing');
  if (!equal(sha256(list), trust.revocationHash)) fail('has another hash than the offer names');
  let decoded: RevocationList;
  try {
    decoded = decodeRevocationList(list);
  } catch (error) {
    return fail(error instanceof Error ? `does not decode: ${error.message}` : 'does not decode');
  }
  if (decoded.number !== trust.revocationNumber) fail('has another number than the offer names');
  if (decoded.trustDomain !== trust.trustDomain) fail('is of another trust domain');
  const signed = concat(tag('issuer', 'revocation', 0), list.subarray(0, list.length - 64));
  if (!ed25519Verify(trust.enrolmentKey, signed, decoded.signature)) {
    fail('is not signed by the enrolment key');
  }
  return decoded;
}

/** What is signed with a client's identity key in a session: a tag and then the content. */
export function signedBundles(
  suite: number,
  ctx1: Uint8Array,
  index: number,
  digest: Uint8Array,
): Bytes {
  return concat(tag('client', 'bundles', suite), blob(ctx1), u32(index), digest);
}

/** What a client signs over the sets of a session (§5.4). */
export function signedConsistency(suite: number, ctx3: Uint8Array): Bytes {
  return concat(tag('client', 'consistency', suite), blob(ctx3));
}

/** What a client signs in its advert (§5.1). */
export function signedAdvert(
  suite: number,
  ctx0: Uint8Array,
  idPart: Uint8Array,
  keyPart: Uint8Array,
): Bytes {
  return concat(tag('client', 'advert', suite), blob(ctx0), blob(idPart), blob(keyPart));
}
