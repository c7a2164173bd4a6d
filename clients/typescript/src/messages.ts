/** Messages of the protocol and their encodings (PROTOCOL §3.4, §5). */

import { decodeSet } from './bitmap.js';
import {
  badEncoding,
  blob,
  compare,
  concat,
  Reader,
  text,
  u16,
  u32,
  u64,
  u8,
  utf8,
  type Bytes,
} from './bytes.js';
import { encodeCredential, printable, readCredential, type Credential } from './enrolment.js';
import { errorNameOf, type ErrorName } from './errors.js';
import { hash, sha256, tag } from './hash.js';
import type { HashNode } from './tree.js';

/** Numbers of the messages of PROTOCOL §3.4 that this client sends or reads. */
export const KINDS = {
  advert: 1,
  bundles: 2,
  upload: 3,
  shares: 4,
  roster: 5,
  delivery: 6,
  survivors: 7,
  release: 8,
  abort: 9,
  complaint: 10,
  consistency: 11,
  quorum: 12,
} as const;

/** Bytes of a sealed bundle. */
export const BUNDLE_BYTES = 96;

/** A client's public keys, as they arrived. */
export interface Advert {
  readonly identity: string;
  /** null for form 0. */
  readonly credential: Credential | null;
  readonly channelKey: Bytes;
  readonly maskKey: Bytes;
  /** Commitment H_b to the self-mask seed. */
  readonly commitment: Bytes;
  readonly noiseCommitments: readonly Bytes[];
  /** Empty or 64 bytes. */
  readonly signature: Bytes;
  readonly idPart: Bytes;
  readonly keyPart: Bytes;
}

/** Encodes the part of an advert that says who it is of. */
export function encodeIdPart(identity: string, credential: Credential | null): Bytes {
  return credential === null
    ? concat(text(identity), u8(0))
    : concat(text(identity), u8(1), encodeCredential(credential));
}

/** Encodes the part of an advert that holds the keys of the session. */
export function encodeKeyPart(
  channelKey: Bytes,
  maskKey: Bytes,
  commitment: Bytes,
  noiseCommitments: readonly Bytes[],
): Bytes {
  return concat(channelKey, maskKey, commitment, u8(noiseCommitments.length), ...noiseCommitments);
}

/** Joins the parts of an advert. */
export function encodeAdvert(idPart: Bytes, keyPart: Bytes, signature: Bytes): Bytes {
  return concat(blob(idPart), blob(keyPart), blob(signature));
}

/** Decodes an advert. */
export function decodeAdvert(bytes: Uint8Array): Advert {
  const outer = new Reader(bytes, 'an advert');
  const idPart = outer.blob();
  const keyPart = outer.blob();
  const signature = outer.blob(64);
  outer.end();
  if (signature.length !== 0 && signature.length !== 64) {
    badEncoding('an advert with a signature that is not of 0 or 64 bytes');
  }
  const id = new Reader(idPart, 'an advert');
  const identity = id.text(1, 255);
  const form = id.u8();
  if (form > 1) badEncoding(`an advert of form ${form}`);
  const credential = form === 1 ? readCredential(id) : null;
  id.end();
  const keys = new Reader(keyPart, 'an advert');
  const channelKey = keys.take(32);
  const maskKey = keys.take(32);
  const commitment = keys.take(32);
  const count = keys.u8();
  const noiseCommitments = Array.from({ length: count }, () => keys.take(32));
  keys.end();
  return {
    identity,
    credential,
    channelKey,
    maskKey,
    commitment,
    noiseCommitments,
    signature,
    idPart,
    keyPart,
  };
}

/** Commitment to a self-mask seed (§5.1). */
export function seedCommitment(suite: number, sid: Bytes, identity: string, seed: Bytes): Bytes {
  return hash(suite, 'b-commit', sid, utf8(identity), seed);
}

/** Commitment to the noise seed of layer i (§5.1). */
export function noiseCommitment(
  suite: number,
  sid: Bytes,
  identity: string,
  layer: number,
  seed: Bytes,
): Bytes {
  return hash(suite, 'noise-commit', sid, utf8(identity), u32(layer), seed);
}

/** The leaf of an advert in the tree over the roster, with its parts as received (§4.1). */
export function rosterLeaf(suite: number, ctx0: Bytes, index: number, advert: Advert): Bytes {
  return hash(
    suite,
    'roster leaf',
    ctx0,
    u32(index),
    hash(suite, 'id part', advert.idPart),
    hash(suite, 'key part', advert.keyPart, advert.signature),
  );
}

/** How nodes of the tree over the roster are hashed. */
export function rosterNode(suite: number): HashNode {
  return (left, right) => hash(suite, 'roster node', left, right);
}

/** What orders identities on a ring (§5.1). */
export function ringOrder(graphSeed: Bytes, identity: string): Bytes {
  return sha256(concat(tag('ring', 'order', 0), graphSeed, utf8(identity)));
}

/** Adverts of a whole roster, or of one reader's neighbourhood. */
export interface Roster {
  /** Whether all adverts are there. */
  readonly whole: boolean;
  /** n. */
  readonly size: number;
  /** Index of the reader as a neighbourhood says it; null for a whole roster. */
  readonly reader: number | null;
  readonly adverts: ReadonlyMap<number, Advert>;
  /** Adverts as they arrived. */
  readonly encoded: ReadonlyMap<number, Bytes>;
  /** Empty on the complete graph. */
  readonly graphSeed: Bytes;
  /** Hashes of a neighbourhood's proof; empty for a whole roster. */
  readonly proof: readonly Bytes[];
}

/** Encodes a whole roster. */
export function encodeRoster(adverts: readonly Bytes[], graphSeed: Bytes): Bytes {
  return concat(u8(0), u32(adverts.length), ...adverts.map(blob), blob(graphSeed));
}

/** Encodes a neighbourhood. */
export function encodeNeighbourhood(
  size: number,
  reader: number,
  graphSeed: Bytes,
  adverts: readonly (readonly [number, Bytes])[],
  proof: readonly Bytes[],
): Bytes {
  return concat(
    u8(1),
    u32(size),
    u32(reader),
    blob(graphSeed),
    u32(adverts.length),
    ...adverts.map(([index, advert]) => concat(u32(index), blob(advert))),
    u32(proof.length),
    ...proof,
  );
}

/**
 * Decodes a roster or a neighbourhood (R5.2-1, R5.2-20).
 *
 * Identities must ascend, on a ring in the order that the graph seed draws; each advert must
 * have as many noise commitments as the offer has layers.
 */
export function decodeRoster(bytes: Uint8Array, noiseLayers: number): Roster {
  const reader = new Reader(bytes, 'the roster');
  const form = reader.u8();
  if (form > 1) badEncoding(`a roster of form ${form}`, 'R5.2-1');
  return form === 0 ? decodeWhole(reader, noiseLayers) : decodeNeighbourhood(reader, noiseLayers);
}

function rosterSize(reader: Reader): number {
  const size = reader.u32();
  if (size > 65535) badEncoding(`a roster of ${size} clients`, 'R5.2-1');
  return size;
}

function decodeWhole(reader: Reader, noiseLayers: number): Roster {
  const size = reader.count(rosterSize(reader), 4);
  const encoded = new Map<number, Bytes>();
  const adverts = new Map<number, Advert>();
  for (let i = 0; i < size; i++) encoded.set(i, reader.blob());
  const graphSeed = reader.blob(32);
  reader.end();
  if (graphSeed.length !== 0 && graphSeed.length !== 32) {
    badEncoding('a graph seed that is not of 0 or 32 bytes', 'R5.2-1');
  }
  for (const [index, advert] of encoded) adverts.set(index, decodeAdvert(advert));
  checkAdverts(adverts, graphSeed, noiseLayers, 'R5.2-1');
  return { whole: true, size, reader: null, adverts, encoded, graphSeed, proof: [] };
}

function decodeNeighbourhood(reader: Reader, noiseLayers: number): Roster {
  const size = rosterSize(reader);
  const own = reader.u32();
  const graphSeed = reader.blob(32, 32);
  const count = reader.count(reader.u32(), 8);
  const encoded = new Map<number, Bytes>();
  let last = -1;
  for (let i = 0; i < count; i++) {
    const index = reader.u32();
    if (index <= last || index >= size) {
      badEncoding('a neighbourhood whose indices do not ascend below its size', 'R5.2-20');
    }
    last = index;
    encoded.set(index, reader.blob());
  }
  const hashes = reader.count(reader.u32(), 32);
  const proof = Array.from({ length: hashes }, () => reader.take(32));
  reader.end();
  const adverts = new Map<number, Advert>();
  for (const [index, advert] of encoded) adverts.set(index, decodeAdvert(advert));
  checkAdverts(adverts, graphSeed, noiseLayers, 'R5.2-20');
  return { whole: false, size, reader: own, adverts, encoded, graphSeed, proof };
}

function checkAdverts(
  adverts: ReadonlyMap<number, Advert>,
  graphSeed: Bytes,
  noiseLayers: number,
  rule: string,
): void {
  let previous: Bytes | undefined;
  for (const advert of adverts.values()) {
    if (advert.noiseCommitments.length !== noiseLayers) {
      badEncoding('an advert with another number of noise commitments', rule);
    }
    const key =
      graphSeed.length === 0 ? utf8(advert.identity) : ringOrder(graphSeed, advert.identity);
    if (previous !== undefined && compare(previous, key) >= 0) {
      badEncoding(`a roster in which ${printable(advert.identity)} is out of order`, rule);
    }
    previous = key;
  }
}

/** What opens MaskedInputCollection. */
export interface Delivery {
  /** U2, ascending. */
  readonly shareHolders: readonly number[];
  /** The bitmap of U2 as it arrived. */
  readonly bitmap: Bytes;
  /** Bundles addressed to the reader, ascending by sender. */
  readonly bundles: Bytes;
}

/** Decodes a delivery (R5.3-3). */
export function decodeDelivery(bytes: Uint8Array, size: number): Delivery {
  const reader = new Reader(bytes, 'the delivery');
  const bitmap = reader.blob();
  const bundles = reader.blob();
  reader.end();
  return {
    shareHolders: decodeSet(size, bitmap, 'the set of clients that shared'),
    bitmap,
    bundles,
  };
}

/** A signature of the quorum over ctx3. */
export interface QuorumSignature {
  readonly index: number;
  readonly signature: Bytes;
}

/** What shows that a member of U3 has dealt under this roster (R5.3-13). */
export interface DealingProof {
  readonly index: number;
  /** SHA-256 of its bundles. */
  readonly digest: Bytes;
  readonly signature: Bytes;
}

/** What opens Unmasking in profile 2. */
export interface Quorum {
  readonly signatures: readonly QuorumSignature[];
  readonly dealings: readonly DealingProof[];
}

/** Decodes a quorum (R5.5-1). */
export function decodeQuorum(bytes: Uint8Array): Quorum {
  const reader = new Reader(bytes, 'the quorum');
  const signatures = Array.from({ length: reader.count(reader.u32(), 68) }, () => ({
    index: reader.u32(),
    signature: reader.take(64),
  }));
  const dealings = Array.from({ length: reader.count(reader.u32(), 100) }, () => ({
    index: reader.u32(),
    digest: reader.take(32),
    signature: reader.take(64),
  }));
  reader.end();
  for (const list of [signatures, dealings]) {
    if (list.some(({ index }, i) => i > 0 && index <= list[i - 1]!.index)) {
      badEncoding('a quorum whose indices do not ascend', 'R5.5-1');
    }
  }
  return { signatures, dealings };
}

/** Encodes a complaint about a dealer. */
export function encodeComplaint(code: number, accused: number): Bytes {
  return concat(u16(code), u32(accused));
}

/** How a session ended. */
export type Ending = Release | Abort;

/** A sum was released. */
export interface Release {
  readonly kind: 'release';
  readonly fate: number;
  /** SHA-256 of the packed sum. */
  readonly sumHash: Bytes;
  readonly size: bigint;
  /** |U3|. */
  readonly survivors: number;
  /** Seconds since 1970 until when the sum can be fetched; 0 promises nothing. */
  readonly keptUntil: bigint;
}

/** The session ended without a sum, or without this client. */
export interface Abort {
  readonly kind: 'abort';
  readonly fate: number;
  readonly code: ErrorName;
  /** What the aggregator says, without what cannot be printed. */
  readonly reason: string;
}

/** Decodes a release. */
export function decodeRelease(bytes: Uint8Array): Release {
  const reader = new Reader(bytes, 'the release');
  const fate = reader.u8();
  if (fate < 1 || fate > 2) badEncoding(`a release with fate ${fate}`);
  const sumHash = reader.take(32);
  const size = reader.u64();
  const survivors = reader.u32();
  const keptUntil = reader.u64();
  reader.end();
  return { kind: 'release', fate, sumHash, size, survivors, keptUntil };
}

/** Encodes a release. */
export function encodeRelease(release: Release): Bytes {
  return concat(
    u8(release.fate),
    release.sumHash,
    u64(release.size),
    u32(release.survivors),
    u64(release.keptUntil),
  );
}

/** Decodes an abort. */
export function decodeAbort(bytes: Uint8Array): Abort {
  const reader = new Reader(bytes, 'the abort');
  const fate = reader.u8();
  if (fate > 2) badEncoding(`an abort with fate ${fate}`);
  const code = errorNameOf(reader.u16());
  const reason = reader.text(0, 1000);
  reader.end();
  return { kind: 'abort', fate, code, reason: printable(reason) };
}
