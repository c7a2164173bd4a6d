/** Noise streams, and the tables that draws are made from (PROTOCOL §6.7, §14.8). */

import { concat, fromHex, toHex, u64, u8, utf8, type Bytes } from './bytes.js';
import { KeyStream } from './crypto.js';
import { expand, extract, sha256 } from './hash.js';
import { formatRational, rational, type Rational } from './rational.js';

const LABEL = 'dpnoise/v1/bit-source';

/** Opens the noise stream of a key and a label: AES-256-CTR from counter block 0. */
export function openNoiseStream(key: Uint8Array, label: Uint8Array | string): Promise<KeyStream> {
  const bytes = typeof label === 'string' ? utf8(label) : label;
  const info = concat(utf8(LABEL), u8(bytes.length), bytes);
  const derived = expand(extract(new Uint8Array(32), key), info, 32);
  return KeyStream.open(derived, new Uint8Array(16));
}

/** Thresholds below this have less than 2^−137 of the mass beyond them. */
const LEAST_TAIL = 1n << 119n;
const WHOLE = 1n << 256n;

/** Draws a number of entries, from one on. */
export interface Sampler {
  /** Hash of the tables, 64 hexadecimal digits (R14.8-2, R14.8-4). */
  readonly hash: string;
  /** Adds the draws of entries 0, 1, … of a label to a vector. */
  addTo(
    vector: Float64Array,
    key: Bytes,
    label: Uint8Array | string,
    start?: number,
  ): Promise<void>;
}

/** ⌊2^256·P(X > k)⌋ for k = 0, 1, … of the Skellam law, as long as that is at least 2^119. */
function skellamTails(variance: Rational): bigint[] {
  for (let precision = 384n; ; precision *= 2n) {
    const tails = skellamTailsAt(variance, precision);
    if (tails !== null) return tails;
  }
}

const divideUp = (a: bigint, b: bigint): bigint => (a + b - 1n) / b;

/** The same in fixed point, or null where two ends of an interval have different floors. */
function skellamTailsAt({ p, q }: Rational, precision: bigint): bigint[] | null {
  const one = 1n << precision;
  const square = one * one;
  const root = Math.sqrt(Number((p << 32n) / q) / 2 ** 32);
  const last = Math.ceil(21.07 * root + 148) + 8;
  const lowRatios = new Array<bigint>(last);
  const highRatios = new Array<bigint>(last);
  let low = 0n;
  let high = one;
  // The recurrence of Bessel functions; every ratio lies between 0 and 1.
  for (let k = last + Math.ceil(root / 4) + 8; k >= 1; k--) {
    const top = 2n * BigInt(k) * q * one;
    const nextLow = square / (divideUp(top, p) + high);
    high = divideUp(square, top / p + low);
    low = nextLow;
    if (k <= last) {
      lowRatios[k - 1] = low;
      highRatios[k - 1] = high;
    }
  }
  const lows = [one];
  const highs = [one];
  for (let k = 1; k <= last; k++) {
    lows.push((lows[k - 1]! * lowRatios[k - 1]!) >> precision);
    highs.push(divideUp(highs[k - 1]! * highRatios[k - 1]!, one));
  }
  const ratio = highRatios[last - 1]!;
  if (ratio >= one) return null;
  const rest = divideUp(highs[last]! * ratio, one - ratio);
  let lowSum = 0n;
  let highSum = rest;
  for (let k = last; k >= 1; k--) {
    lowSum += lows[k]!;
    highSum += highs[k]!;
  }
  const lowTotal = one + 2n * lowSum;
  const highTotal = one + 2n * highSum;
  const tails: bigint[] = [];
  for (let k = 0; k < last; k++) {
    const tail = (lowSum << 256n) / highTotal;
    const above = (highSum << 256n) / lowTotal;
    if (tail !== above) {
      if (above >= LEAST_TAIL) return null;
    }
    if (tail < LEAST_TAIL) return tails;
    tails.push(tail);
    lowSum -= lows[k + 1]!;
    highSum -= highs[k + 1]!;
  }
  return null;
}

/** Thresholds from which on cells have 20 bits in place of 16. */
const MANY_THRESHOLDS = 12_000;
/** Entries that are drawn at once. */
const PIECE = 1 << 15;

/** Draws of the Skellam law by inversion from a table of 256-bit thresholds. */
export class SkellamTable implements Sampler {
  readonly hash: string;
  /** Outcome below the first threshold. */
  readonly first: number;
  /** Thresholds, ascending. */
  readonly thresholds: readonly bigint[];
  readonly #cellBits: number;
  /** For each leading value, how many thresholds are at most the least number with it. */
  readonly #below: Int32Array;

  /** @param variance u, from 2^−20 to 2^28. */
  constructor(variance: Rational) {
    const tails = skellamTails(variance);
    this.thresholds = [...tails].reverse().concat(tails.map((tail) => WHOLE - tail));
    this.first = -tails.length;
    this.hash = this.#digest(variance);
    this.#cellBits = this.thresholds.length >= MANY_THRESHOLDS ? 20 : 16;
    const shift = BigInt(256 - this.#cellBits);
    this.#below = new Int32Array((1 << this.#cellBits) + 1);
    let count = 0;
    for (let cell = 0; cell < this.#below.length; cell++) {
      const start = BigInt(cell) << shift;
      while (count < this.thresholds.length && this.thresholds[count]! <= start) count++;
      this.#below[cell] = count;
    }
  }

  #digest(variance: Rational): string {
    const parameter = variance.q === 1n ? `${variance.p}` : formatRational(variance);
    const first = u64(BigInt.asUintN(64, BigInt(this.first)));
    const values = new Uint8Array(32 * this.thresholds.length);
    this.thresholds.forEach((threshold, i) => {
      values.set(bytesOf(threshold), 32 * i);
    });
    const parts = [utf8('skellam'), utf8(parameter), first, values];
    const content = parts.map((part) => concat(u64(part.length), part));
    return toHex(sha256(concat(utf8('dpnoise/v1/inversion-table'), ...content)));
  }

  async addTo(
    vector: Float64Array,
    key: Bytes,
    label: Uint8Array | string,
    start = 0,
  ): Promise<void> {
    const prefix = typeof label === 'string' ? utf8(label) : label;
    const cells = await openNoiseStream(key, concat(prefix, utf8('/cells')));
    const refinement = await openNoiseStream(key, concat(prefix, utf8('/refinement')));
    const width = this.#cellBits === 16 ? 2 : 4;
    for (let offset = 0; offset < vector.length; offset += PIECE) {
      const count = Math.min(PIECE, vector.length - offset);
      const from = start + offset;
      const bytes = await cells.read(width * from, width * count);
      const words =
        width === 2
          ? new Uint16Array(bytes.buffer)
          : new Uint32Array(bytes.buffer).map((word) => word >>> 12);
      // A cell that no threshold divides needs no further bits.
      let rest: BigUint64Array | null = null;
      for (let i = 0; i < count; i++) {
        const cell = words[i]!;
        let low = this.#below[cell]!;
        let high = this.#countBelowEnd(cell);
        if (low < high) {
          rest ??= new BigUint64Array((await refinement.read(32 * from, 32 * count)).buffer);
          const value = this.#value(cell, rest, 4 * i);
          while (low < high) {
            const middle = (low + high) >> 1;
            if (this.thresholds[middle]! <= value) low = middle + 1;
            else high = middle;
          }
        }
        vector[offset + i]! += this.first + low;
      }
    }
  }

  /** How many thresholds are at most the greatest number of a cell. */
  #countBelowEnd(cell: number): number {
    const next = this.#below[cell + 1]!;
    // A threshold at the start of the next cell is above this one.
    const shift = BigInt(256 - this.#cellBits);
    let count = next;
    while (count > 0 && this.thresholds[count - 1]! === BigInt(cell + 1) << shift) count--;
    return count;
  }

  #value(cell: number, words: BigUint64Array, at: number): bigint {
    const bits = BigInt(64 - this.#cellBits);
    let value = (BigInt(cell) << bits) | (words[at]! >> (64n - bits));
    for (let i = 1; i < 4; i++) value = (value << 64n) | words[at + i]!;
    return value;
  }
}

/** A sum of draws from equal tables, for variances above 2^28 (R14.8-4). */
class WideSkellam implements Sampler {
  readonly hash: string;
  readonly #table: SkellamTable;
  readonly #tables: number;

  constructor(table: SkellamTable, tables: number) {
    this.#table = table;
    this.#tables = tables;
    const hashes = Array.from({ length: tables }, () => fromHex(table.hash));
    this.hash = toHex(sha256(concat(utf8('dpnoise/v1/added-draws'), ...hashes)));
  }

  async addTo(
    vector: Float64Array,
    key: Bytes,
    label: Uint8Array | string,
    start = 0,
  ): Promise<void> {
    const prefix = typeof label === 'string' ? utf8(label) : label;
    for (let i = 0; i < this.#tables; i++) {
      await this.#table.addTo(vector, key, concat(prefix, utf8('/'), u8(i)), start);
    }
  }
}

/** Largest variance of one table. */
const WIDEST = rational(1n << 28n);

/** Tables that were made, so that a session makes each once. */
export class SkellamSamplers {
  readonly #made = new Map<string, Sampler>();
  readonly #most: number;

  /** @param most Samplers that are kept; beyond it, all are forgotten. */
  constructor(most = 64) {
    this.#most = most;
  }

  /** The sampler of a variance from 2^−20 to 2^32. */
  of(variance: Rational): Sampler {
    const id = formatRational(variance);
    const known = this.#made.get(id);
    if (known !== undefined) return known;
    let tables = 1;
    while (variance.p > WIDEST.p * variance.q * BigInt(tables)) tables *= 2;
    const sampler =
      tables === 1
        ? new SkellamTable(variance)
        : new WideSkellam(
            new SkellamTable(rational(variance.p, variance.q * BigInt(tables))),
            tables,
          );
    if (this.#made.size >= this.#most) this.#made.clear();
    this.#made.set(id, sampler);
    return sampler;
  }
}

function bytesOf(value: bigint): Bytes {
  return fromHex(value.toString(16).padStart(64, '0'));
}
