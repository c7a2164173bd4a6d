/** Masks from key streams (PROTOCOL §6.2 to §6.5), added to a vector of residues. */

import { blob, concat, u32, type Bytes } from './bytes.js';
import { KeyStream } from './crypto.js';
import { expand, extract, tag } from './hash.js';

/**
 * Residues mod m: 32-bit words where m is at most 2^32, else 64-bit words.
 */
export type Residues = Uint32Array<ArrayBuffer> | BigUint64Array<ArrayBuffer>;

/** Bits of a word of a mask's stream: the smallest that holds m − 1 (PROTOCOL §6.4). */
export function wordBits(modulus: bigint): 16 | 32 | 64 {
  return modulus <= 1n << 16n ? 16 : modulus <= 1n << 32n ? 32 : 64;
}

/** Bits of a residue: b = ⌈log2 m⌉. */
export function residueBits(modulus: bigint): number {
  return (modulus - 1n).toString(2).length;
}

/** A vector of zeros. */
export function zeroResidues(modulus: bigint, dim: number): Residues {
  return wordBits(modulus) === 64 ? new BigUint64Array(dim) : new Uint32Array(dim);
}

/** Key and first counter of a mask. */
export interface MaskKey {
  readonly key: Bytes;
  readonly iv: Bytes;
}

function maskKey(suite: number, sid: Uint8Array, secret: Uint8Array, info: Uint8Array): MaskKey {
  const keyBytes = suite === 2 ? 16 : 32;
  const out = expand(extract(sid, secret), info, keyBytes + 12);
  return { key: out.slice(0, keyBytes), iv: out.slice(keyBytes) };
}

/** Key of the mask that clients u and v share (§6.2). */
export function pairMaskKey(
  suite: number,
  sid: Uint8Array,
  ctx2: Uint8Array,
  u: number,
  v: number,
  secret: Uint8Array,
): MaskKey {
  const info = concat(
    tag('pair', 'mask', suite),
    blob(ctx2),
    u32(Math.min(u, v)),
    u32(Math.max(u, v)),
    u32(0),
  );
  return maskKey(suite, sid, secret, info);
}

/** Key of client u's self mask (§6.3). */
export function selfMaskKey(
  suite: number,
  sid: Uint8Array,
  ctx2: Uint8Array,
  u: number,
  seed: Uint8Array,
): MaskKey {
  const info = concat(tag('self', 'mask', suite), blob(ctx2), u32(u), u32(0));
  return maskKey(suite, sid, seed, info);
}

/** Opens the stream of a mask (§6.4). */
export function openMaskStream(mask: MaskKey): Promise<KeyStream> {
  return KeyStream.open(mask.key, concat(mask.iv, u32(2)));
}

type Words = Uint16Array | Uint32Array | BigUint64Array;

function asWords(bytes: Bytes, bits: 16 | 32 | 64): Words {
  if (bits === 16) return new Uint16Array(bytes.buffer);
  return bits === 32 ? new Uint32Array(bytes.buffer) : new BigUint64Array(bytes.buffer);
}

// Typed arrays read words in the order of this machine, streams are little-endian.
if (new Uint8Array(new Uint16Array([1]).buffer)[0] !== 1) {
  throw new Error('this package runs on little-endian machines only');
}

/** Words that are read at once. */
const PIECE = 1 << 18;
/** Words that are read at once to replace rejected ones. */
const REPLACEMENTS = 1 << 10;

/**
 * Coordinates `start` to `end` of a mask whose modulus is a power of two.
 */
export async function maskSlice(
  stream: KeyStream,
  modulus: bigint,
  start: number,
  end: number,
): Promise<Residues> {
  const bits = wordBits(modulus);
  const width = bits / 8;
  const words = asWords(await stream.read(start * width, (end - start) * width), bits);
  if (words instanceof BigUint64Array) return words.map((word) => word & (modulus - 1n));
  const top = Number(modulus - 1n);
  return Uint32Array.from(words, (word) => (word & top) >>> 0);
}

/**
 * Adds a mask to a vector, or subtracts it, in place (§6.4, §6.5).
 *
 * @param sign 1 to add, −1 to subtract.
 */
export async function addMask(
  vector: Residues,
  modulus: bigint,
  stream: KeyStream,
  sign: 1 | -1,
): Promise<void> {
  const take =
    vector instanceof BigUint64Array
      ? wideAdder(vector, modulus, sign)
      : narrowAdder(vector, modulus, sign);
  const bits = wordBits(modulus);
  const read = async (start: number, count: number): Promise<Words> =>
    asWords(await stream.read((start * bits) / 8, (count * bits) / 8), bits);
  const dim = vector.length;
  const rejected: number[] = [];
  for (let start = 0; start < dim; start += PIECE) {
    const words = await read(start, Math.min(PIECE, dim - start));
    for (let i = 0; i < words.length; i++)
      if (!take(start + i, words[i]!)) rejected.push(start + i);
  }
  // Rejected words are replaced, in ascending order, by the accepted ones behind word d.
  let filled = 0;
  for (let start = dim; filled < rejected.length; start += REPLACEMENTS) {
    for (const word of await read(start, REPLACEMENTS)) {
      if (filled < rejected.length && take(rejected[filled]!, word)) filled++;
    }
  }
}

/** Adds one word of a mask to one entry, or says that the word is rejected. */
type Adder = (index: number, word: number | bigint) => boolean;

function narrowAdder(vector: Uint32Array, modulus: bigint, sign: 1 | -1): Adder {
  const m = Number(modulus);
  const size = 2 ** wordBits(modulus);
  const accepted = size - (size % m);
  return (index, word) => {
    if ((word as number) >= accepted) return false;
    const mask = (word as number) % m;
    const sum = vector[index]! + (sign === 1 ? mask : m - mask);
    vector[index] = sum >= m ? sum - m : sum;
    return true;
  };
}

function wideAdder(vector: BigUint64Array, modulus: bigint, sign: 1 | -1): Adder {
  const size = 1n << 64n;
  const accepted = size - (size % modulus);
  return (index, word) => {
    if ((word as bigint) >= accepted) return false;
    const mask = (word as bigint) % modulus;
    vector[index] = (vector[index]! + (sign === 1 ? mask : modulus - mask)) % modulus;
    return true;
  };
}
