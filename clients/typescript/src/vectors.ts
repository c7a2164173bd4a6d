/** Vectors of exact tasks: integers in, integers out (PROTOCOL §14.1). */

import { SecAggError } from './errors.js';
import { zeroResidues, type Residues } from './masks.js';

/** Integers of a client: numbers that are integers, or bigints. */
export type IntegerVector = ArrayLike<number> | ArrayLike<bigint>;

/**
 * Encodes integers of an exact task (R14.1-1).
 *
 * @param vector `dim` integers from −⌊m/2⌋ to ⌈m/2⌉ − 1.
 * @throws SecAggError BAD_VECTOR for another length, a fraction, or an entry out of range.
 */
export function encodeIntegers(vector: IntegerVector, modulus: bigint, dim: number): Residues {
  const fail = (what: string): never => {
    throw new SecAggError('BAD_VECTOR', `this client's vector ${what}`, { rule: 'R14.1-1' });
  };
  if (vector.length !== dim) fail(`has ${vector.length} entries in place of ${dim}`);
  const least = -(modulus / 2n);
  const top = (modulus + 1n) / 2n;
  const out = zeroResidues(modulus, dim);
  for (let i = 0; i < dim; i++) {
    const entry = vector[i]!;
    if (typeof entry === 'number' && !Number.isSafeInteger(entry)) {
      fail(`has an entry at ${i} that is no integer`);
    }
    const value = BigInt(entry);
    if (value < least || value >= top)
      fail(`has an entry at ${i} outside of ${least} to ${top - 1n}`);
    const residue = value < 0n ? value + modulus : value;
    if (out instanceof BigUint64Array) out[i] = residue;
    else out[i] = Number(residue);
  }
  return out;
}

/**
 * Reads residues of a sum as signed integers (R14.1-2).
 *
 * @returns Doubles where m is at most 2^32, which holds them exactly; else bigints.
 */
export function centre(residues: Residues, modulus: bigint): Float64Array | BigInt64Array {
  if (residues instanceof BigUint64Array) {
    const half = (modulus + 1n) / 2n;
    return BigInt64Array.from(residues, (z) => (z < half ? z : z - modulus));
  }
  const m = Number(modulus);
  const half = Math.ceil(m / 2);
  return Float64Array.from(residues, (z) => (z < half ? z : z - m));
}
