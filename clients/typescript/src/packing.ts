/** Packing of residues into ⌈d·b/8⌉ bytes (PROTOCOL §8). */

import { badEncoding, type Bytes } from './bytes.js';
import { residueBits, wordBits, zeroResidues, type Residues } from './masks.js';

const BLOCK = 1 << 17;

/** Bytes that a vector of `dim` residues takes. */
export function packedSize(modulus: bigint, dim: number): number {
  return Math.ceil((dim * residueBits(modulus)) / 8);
}

interface Matrix {
  /** First entry. */
  readonly start: number;
  readonly columns: number;
}

function matrices(dim: number, word: number): { blocks: Matrix[]; tail: number } {
  const blocks: Matrix[] = [];
  let start = 0;
  for (; dim - start >= BLOCK; start += BLOCK) blocks.push({ start, columns: BLOCK / word });
  const columns = Math.floor((dim - start) / word);
  if (columns > 0) blocks.push({ start, columns });
  return { blocks, tail: start + columns * word };
}

/** Packs residues. Entries must be below the modulus. */
export function pack(vector: Residues, modulus: bigint): Bytes {
  const bits = residueBits(modulus);
  const word = wordBits(modulus);
  const out = new Uint8Array(packedSize(modulus, vector.length));
  const { blocks, tail } = matrices(vector.length, word);
  let offset = 0;
  for (const { start, columns } of blocks) {
    const size = (bits * columns * word) / 8;
    if (vector instanceof BigUint64Array) {
      const words = new BigUint64Array(bits * columns);
      packWide(vector, start, columns, bits, words);
      out.set(new Uint8Array(words.buffer), offset);
    } else {
      const words = word === 16 ? new Uint16Array(bits * columns) : new Uint32Array(bits * columns);
      packNarrow(vector, start, columns, bits, word, words);
      out.set(new Uint8Array(words.buffer), offset);
    }
    offset += size;
  }
  let rest = 0n;
  let filled = 0;
  for (let i = tail; i < vector.length; i++) {
    rest |= BigInt(vector[i]!) << BigInt(filled);
    filled += bits;
  }
  for (; offset < out.length; offset++, rest >>= 8n) out[offset] = Number(rest & 255n);
  return out;
}

function packNarrow(
  vector: Uint32Array,
  start: number,
  columns: number,
  bits: number,
  word: number,
  out: Uint16Array | Uint32Array,
): void {
  for (let row = 0; row < word; row++) {
    const shift = (row * bits) % word;
    const low = Math.floor((row * bits) / word) * columns;
    const first = start + row * columns;
    // Typed arrays keep the low bits of what is stored: of 16 bits, or of 32.
    for (let c = 0; c < columns; c++) out[low + c]! |= vector[first + c]! << shift;
    if (shift + bits > word) {
      for (let c = 0; c < columns; c++) {
        out[low + columns + c]! |= vector[first + c]! >>> (word - shift);
      }
    }
  }
}

function packWide(
  vector: BigUint64Array,
  start: number,
  columns: number,
  bits: number,
  out: BigUint64Array,
): void {
  for (let row = 0; row < 64; row++) {
    const shift = (row * bits) % 64;
    const low = Math.floor((row * bits) / 64) * columns;
    const first = start + row * columns;
    for (let c = 0; c < columns; c++) out[low + c]! |= vector[first + c]! << BigInt(shift);
    if (shift + bits > 64) {
      for (let c = 0; c < columns; c++) {
        out[low + columns + c]! |= vector[first + c]! >> BigInt(64 - shift);
      }
    }
  }
}

/**
 * Unpacks residues, for example a sum.
 *
 * Refuses another size, an entry that is not below the modulus, and unused bits that are
 * not zero (BAD_ENCODING, R8-1).
 */
export function unpack(packed: Uint8Array, modulus: bigint, dim: number): Residues {
  const bits = residueBits(modulus);
  const word = wordBits(modulus);
  if (packed.length !== packedSize(modulus, dim)) {
    badEncoding(`a packed vector of ${packed.length} bytes`, 'R8-1');
  }
  const vector = zeroResidues(modulus, dim);
  const { blocks, tail } = matrices(dim, word);
  let offset = 0;
  for (const { start, columns } of blocks) {
    const size = (bits * columns * word) / 8;
    // A copy, which begins at a multiple of every word.
    const bytes = new Uint8Array(packed.subarray(offset, offset + size));
    if (vector instanceof BigUint64Array) {
      unpackWide(new BigUint64Array(bytes.buffer), vector, start, columns, bits);
    } else {
      const words = word === 16 ? new Uint16Array(bytes.buffer) : new Uint32Array(bytes.buffer);
      unpackNarrow(words, vector, start, columns, bits, word);
    }
    offset += size;
  }
  let rest = 0n;
  for (let i = packed.length - 1; i >= offset; i--) rest = (rest << 8n) | BigInt(packed[i]!);
  const mask = (1n << BigInt(bits)) - 1n;
  for (let i = tail; i < dim; i++, rest >>= BigInt(bits)) {
    if (vector instanceof BigUint64Array) vector[i] = rest & mask;
    else vector[i] = Number(rest & mask);
  }
  if (rest !== 0n) badEncoding('a packed vector with unused bits that are not zero', 'R8-1');
  const top = vector instanceof BigUint64Array ? modulus : Number(modulus);
  if (!vector.every((entry: number | bigint) => entry < top)) {
    badEncoding('a packed vector with an entry that is not below the modulus', 'R8-1');
  }
  return vector;
}

function unpackNarrow(
  words: Uint16Array | Uint32Array,
  vector: Uint32Array,
  start: number,
  columns: number,
  bits: number,
  word: number,
): void {
  const mask = bits === 32 ? 0xffffffff : (1 << bits) - 1;
  for (let row = 0; row < word; row++) {
    const shift = (row * bits) % word;
    const low = Math.floor((row * bits) / word) * columns;
    const first = start + row * columns;
    for (let c = 0; c < columns; c++) {
      let value = words[low + c]! >>> shift;
      if (shift + bits > word) value |= words[low + columns + c]! << (word - shift);
      vector[first + c] = value & mask;
    }
  }
}

function unpackWide(
  words: BigUint64Array,
  vector: BigUint64Array,
  start: number,
  columns: number,
  bits: number,
): void {
  const mask = (1n << BigInt(bits)) - 1n;
  for (let row = 0; row < 64; row++) {
    const shift = (row * bits) % 64;
    const low = Math.floor((row * bits) / 64) * columns;
    const first = start + row * columns;
    for (let c = 0; c < columns; c++) {
      let value = words[low + c]! >> BigInt(shift);
      if (shift + bits > 64) value |= words[low + columns + c]! << BigInt(64 - shift);
      vector[first + c] = value & mask;
    }
  }
}
