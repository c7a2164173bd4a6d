/** Signs and orthonormal transforms (PROTOCOL §14.4). */

import type { Bytes } from './bytes.js';
import { refuse } from './errors.js';
import { hash } from './hash.js';
import { openNoiseStream } from './noise-stream.js';

/** Rotations that this client has. */
export type Rotation = 'none' | 'hadamard' | 'hadamard-kronecker' | 'dft';

/** Odd parts of the orders of Kronecker products, as products of Paley matrices. */
const ODD_PARTS: readonly (readonly number[])[] = [[], [12], [20], [12, 12], [12, 20], [20, 20]];

function isRotation(name: string): name is Rotation {
  return ['none', 'hadamard', 'hadamard-kronecker', 'dft'].includes(name);
}

function powerFrom(least: number): number {
  let power = 1;
  while (power < least) power *= 2;
  return power;
}

const product = (factors: readonly number[]): number => factors.reduce((a, b) => a * b, 1);

function kroneckerOrder(dim: number): { length: number; odd: readonly number[] } {
  const candidates = ODD_PARTS.map((odd) => ({
    length: product(odd) * powerFrom(dim / product(odd)),
    odd,
  }));
  return candidates.reduce((best, one) => (one.length < best.length ? one : best));
}

/** Coordinates that a rotation turns `dim` entries into; unknown ones are refused (R14.2-1). */
export function rotatedLength(rotation: string, dim: number): number {
  if (!isRotation(rotation))
    refuse('BAD_CONFIG', 'R14.2-1', 'the noise block has another rotation');
  if (rotation === 'hadamard') return powerFrom(dim);
  return rotation === 'hadamard-kronecker' ? kroneckerOrder(dim).length : dim;
}

/** Key of the signs of a session. */
export function signsKey(suite: number, sid: Bytes): Bytes {
  return hash(suite, 'rotation', sid);
}

/** Signs of the first `dim` entries, +1 or −1 (R14.4-1). */
export async function readSigns(key: Bytes, dim: number): Promise<Int8Array> {
  const stream = await openNoiseStream(key, 'rotation/signs');
  const bytes = await stream.read(0, Math.ceil(dim / 8));
  return Int8Array.from({ length: dim }, (_, j) => ((bytes[j >> 3]! >> (j & 7)) & 1 ? -1 : 1));
}

/** Turns a vector: signs, then the transform; padding is zeros behind the signs. */
export async function rotate(
  rotation: string,
  vector: Float64Array,
  suite: number,
  sid: Bytes,
): Promise<Float64Array> {
  if (rotation === 'none') return vector.slice();
  const signs = await readSigns(signsKey(suite, sid), vector.length);
  const out = new Float64Array(rotatedLength(rotation, vector.length));
  for (let i = 0; i < vector.length; i++) out[i] = vector[i]! * signs[i]!;
  return rotation === 'dft'
    ? realDft(out)
    : hadamards(out, factorsOf(rotation, vector.length), false);
}

/** Turns a vector back to its first `dim` entries. */
export async function rotateBack(
  rotation: string,
  rotated: Float64Array,
  dim: number,
  suite: number,
  sid: Bytes,
): Promise<Float64Array> {
  if (rotation === 'none') return rotated.slice();
  const signs = await readSigns(signsKey(suite, sid), dim);
  const turned =
    rotation === 'dft'
      ? inverseRealDft(rotated)
      : hadamards(rotated.slice(), factorsOf(rotation, dim), true);
  return Float64Array.from({ length: dim }, (_, i) => turned[i]! * signs[i]!);
}

/** Orders of Paley factors from left to right; a power of two makes up the rest. */
function factorsOf(rotation: string, dim: number): readonly number[] {
  return rotation === 'hadamard' ? [] : kroneckerOrder(dim).odd;
}

/**
 * A Kronecker product of Paley matrices and a Walsh–Hadamard matrix, times 1/√length.
 *
 * A product of Walsh–Hadamard factors is the Walsh–Hadamard matrix of their order, in
 * natural order, so that all powers of two are one factor.
 */
function hadamards(
  vector: Float64Array,
  odd: readonly number[],
  transposed: boolean,
): Float64Array {
  const length = vector.length;
  let stride = length;
  for (const order of odd) {
    stride /= order;
    applyPaley(vector, order, stride, transposed);
  }
  // What is left acts on neighbours: the rightmost factors.
  for (let half = 1; half < stride; half *= 2) {
    for (let block = 0; block < length; block += 2 * half) {
      for (let i = block; i < block + half; i++) {
        const a = vector[i]!;
        const b = vector[i + half]!;
        vector[i] = a + b;
        vector[i + half] = a - b;
      }
    }
  }
  const scale = 1 / Math.sqrt(length);
  for (let i = 0; i < length; i++) vector[i]! *= scale;
  return vector;
}

/** I + S of order q + 1 for the prime q. */
function paley(order: number): number[][] {
  const prime = order - 1;
  const squares = new Set(Array.from({ length: prime - 1 }, (_, i) => ((i + 1) * (i + 1)) % prime));
  const character = (z: number): number => {
    const rest = ((z % prime) + prime) % prime;
    return rest === 0 ? 0 : squares.has(rest) ? 1 : -1;
  };
  return Array.from({ length: order }, (_, i) =>
    Array.from({ length: order }, (_unused, j) => {
      const skew = i === 0 ? (j === 0 ? 0 : 1) : j === 0 ? -1 : character(i - j);
      return skew + (i === j ? 1 : 0);
    }),
  );
}

function applyPaley(
  vector: Float64Array,
  order: number,
  stride: number,
  transposed: boolean,
): void {
  const matrix = paley(order);
  const column = new Float64Array(order);
  for (let block = 0; block < vector.length; block += order * stride) {
    for (let i = block; i < block + stride; i++) {
      for (let row = 0; row < order; row++) {
        let sum = 0;
        for (let k = 0; k < order; k++) {
          sum += (transposed ? matrix[k]![row]! : matrix[row]![k]!) * vector[i + k * stride]!;
        }
        column[row] = sum;
      }
      for (let row = 0; row < order; row++) vector[i + row * stride] = column[row]!;
    }
  }
}

/** Real and imaginary parts of numbers. */
interface Complex {
  readonly re: Float64Array;
  readonly im: Float64Array;
}

/** Coordinates of the orthonormal real transform, in the order of §14.4. */
function realDft(vector: Float64Array): Float64Array {
  const length = vector.length;
  const { re, im } = dft({ re: vector, im: new Float64Array(length) });
  const scale = 1 / Math.sqrt(length);
  const half = Math.floor((length - 1) / 2);
  const out = new Float64Array(length);
  out[0] = re[0]! * scale;
  for (let f = 1; f <= half; f++) {
    out[f] = Math.SQRT2 * re[f]! * scale;
    out[half + f] = Math.SQRT2 * im[f]! * scale;
  }
  if (length % 2 === 0) out[length - 1] = re[length / 2]! * scale;
  return out;
}

function inverseRealDft(coordinates: Float64Array): Float64Array {
  const length = coordinates.length;
  const half = Math.floor((length - 1) / 2);
  const re = new Float64Array(length);
  const im = new Float64Array(length);
  re[0] = coordinates[0]!;
  for (let f = 1; f <= half; f++) {
    re[f] = coordinates[f]! / Math.SQRT2;
    im[f] = coordinates[half + f]! / Math.SQRT2;
    re[length - f] = re[f]!;
    im[length - f] = -im[f]!;
  }
  if (length % 2 === 0) re[length / 2] = coordinates[length - 1]!;
  // The inverse is the conjugate of the transform of the conjugate.
  const turned = dft({ re, im: im.map((x) => -x) });
  const scale = 1 / Math.sqrt(length);
  return turned.re.map((x) => x * scale);
}

/** X_f = Σ x_t e^(−2πi·f·t/n), by Bluestein's convolution for any n. */
function dft(input: Complex): Complex {
  const length = input.re.length;
  if ((length & (length - 1)) === 0) {
    const out = { re: input.re.slice(), im: input.im.slice() };
    fft(out);
    return out;
  }
  const size = powerFrom(2 * length - 1);
  const chirp = (t: number): readonly [number, number] => {
    // t² mod 2n keeps the angle small, and with it the error of sine and cosine.
    const angle = (Math.PI * Number((BigInt(t) * BigInt(t)) % BigInt(2 * length))) / length;
    return [Math.cos(angle), -Math.sin(angle)];
  };
  const a = { re: new Float64Array(size), im: new Float64Array(size) };
  const b = { re: new Float64Array(size), im: new Float64Array(size) };
  const chirps = Array.from({ length }, (_, t) => chirp(t));
  chirps.forEach(([c, s], t) => {
    a.re[t] = input.re[t]! * c - input.im[t]! * s;
    a.im[t] = input.re[t]! * s + input.im[t]! * c;
    b.re[t] = c;
    b.im[t] = -s;
    if (t > 0) {
      b.re[size - t] = c;
      b.im[size - t] = -s;
    }
  });
  fft(a);
  fft(b);
  const joined = { re: new Float64Array(size), im: new Float64Array(size) };
  for (let i = 0; i < size; i++) {
    // Conjugated, so that the next transform is the inverse one but for 1/size.
    joined.re[i] = a.re[i]! * b.re[i]! - a.im[i]! * b.im[i]!;
    joined.im[i] = -(a.re[i]! * b.im[i]! + a.im[i]! * b.re[i]!);
  }
  fft(joined);
  const out = { re: new Float64Array(length), im: new Float64Array(length) };
  chirps.forEach(([c, s], f) => {
    const re = joined.re[f]! / size;
    const im = -joined.im[f]! / size;
    out.re[f] = re * c - im * s;
    out.im[f] = re * s + im * c;
  });
  return out;
}

/** The transform of a power of two of numbers, in place. */
function fft({ re, im }: Complex): void {
  const length = re.length;
  for (let i = 1, j = 0; i < length; i++) {
    let bit = length >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [re[i], re[j]] = [re[j]!, re[i]!];
      [im[i], im[j]] = [im[j]!, im[i]!];
    }
  }
  for (let half = 1; half < length; half *= 2) {
    for (let k = 0; k < half; k++) {
      const c = Math.cos((Math.PI * k) / half);
      const s = -Math.sin((Math.PI * k) / half);
      for (let i = k; i < length; i += 2 * half) {
        const j = i + half;
        const x = re[j]! * c - im[j]! * s;
        const y = re[j]! * s + im[j]! * c;
        re[j] = re[i]! - x;
        im[j] = im[i]! - y;
        re[i]! += x;
        im[i]! += y;
      }
    }
  }
}
