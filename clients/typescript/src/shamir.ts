/** Shamir's secret sharing over GF(65537), and the encoding of shares (PROTOCOL §7). */

import { badEncoding, type Bytes } from './bytes.js';
import { expand, sha256 } from './hash.js';
import { ownStream } from './crypto.js';
import { concat, u32, utf8 } from './bytes.js';

const PRIME = 65537;
/** Limbs of a secret of 32 bytes. */
export const LIMBS = 16;
/** Bytes of an encoded share. */
export const SHARE_BYTES = 34;
/** What an absent share is sent as. */
export const NO_SHARE: Bytes = new Uint8Array(SHARE_BYTES);

/** Coefficients of a polynomial for each limb: row p holds those of x^(p+1). */
export type Coefficients = readonly (readonly number[])[];

/** The 16 limbs of a secret of 32 bytes. */
export function secretLimbs(secret: Uint8Array): number[] {
  return Array.from({ length: LIMBS }, (_, i) => secret[2 * i]! * 256 + secret[2 * i + 1]!);
}

/** The share of a secret at an abscissa from 1 on, limb by limb. */
export function shareAt(
  secret: Uint8Array,
  coefficients: Coefficients,
  abscissa: number,
): number[] {
  const limbs = secretLimbs(secret);
  const sum: number[] = new Array<number>(LIMBS).fill(0);
  for (let p = coefficients.length - 1; p >= 0; p--) {
    const row = coefficients[p]!;
    // Factors are at most 65536, so that every product is below 2^53.
    for (let i = 0; i < LIMBS; i++) sum[i] = ((sum[i]! + row[i]!) * abscissa) % PRIME;
  }
  return sum.map((value, i) => (value + limbs[i]!) % PRIME);
}

/** Encodes a share; a limb of 65536 is a zero with a flag (§7.2). */
export function encodeShare(limbs: readonly number[]): Bytes {
  const out = new Uint8Array(SHARE_BYTES);
  let flags = 0;
  limbs.forEach((limb, i) => {
    if (limb === 65536) flags |= 1 << i;
    out[2 * i] = (limb & 0xffff) >> 8;
    out[2 * i + 1] = limb & 0xff;
  });
  out[32] = flags >> 8;
  out[33] = flags & 0xff;
  return out;
}

/** Decodes a share; refuses another length and a flag over a limb that is not 0 (R7.2-1). */
export function decodeShare(share: Uint8Array): number[] {
  if (share.length !== SHARE_BYTES) badEncoding(`a share of ${share.length} bytes`, 'R7.2-1');
  const flags = share[32]! * 256 + share[33]!;
  return secretLimbs(share).map((limb, i) => {
    if (((flags >> i) & 1) === 0) return limb;
    if (limb !== 0) badEncoding('a share with a flag over a limb that is not 0', 'R7.2-1');
    return 65536;
  });
}

function power(base: number, exponent: number): number {
  let result = 1;
  for (let factor = base, rest = exponent; rest > 0; rest = Math.floor(rest / 2)) {
    if (rest % 2 === 1) result = (result * factor) % PRIME;
    factor = (factor * factor) % PRIME;
  }
  return result;
}

/**
 * Rebuilds a secret from shares at distinct abscissae; all of them are used.
 *
 * A client never needs it; it is here for tests and for tools.
 *
 * @returns The 32 bytes, or undefined where a limb is 65536, which belongs to no secret.
 */
export function rebuildSecret(shares: ReadonlyMap<number, readonly number[]>): Bytes | undefined {
  const points = [...shares.keys()];
  const out = new Uint8Array(2 * LIMBS);
  for (let limb = 0; limb < LIMBS; limb++) {
    let value = 0;
    for (const x of points) {
      let factor = shares.get(x)![limb]!;
      for (const other of points) {
        if (other === x) continue;
        const inverse = power((other - x + PRIME) % PRIME, PRIME - 2);
        factor = (((factor * other) % PRIME) * inverse) % PRIME;
      }
      value = (value + factor) % PRIME;
    }
    if (value === 65536) return undefined;
    out[2 * limb] = value >> 8;
    out[2 * limb + 1] = value & 0xff;
  }
  return out;
}

/**
 * Draws the coefficients of polynomials of degree t − 1 from a client's own seed.
 *
 * They depend on seed, sid, ctx1 and the label (R7.1-2), and are uniform: words of 32 bits,
 * 2^32 − 1 drawn again, reduced mod 65537 (R7.1-1).
 *
 * @param key 32 secret bytes of this session.
 */
export function drawCoefficients(
  key: Uint8Array,
  label: string,
  sid: Uint8Array,
  ctx1: Uint8Array,
  threshold: number,
): Coefficients {
  const wanted = (threshold - 1) * LIMBS;
  const info = concat(utf8(`secagg-ts/polynomials/${label}`), sid, ctx1);
  const values: number[] = [];
  for (let round = 0; values.length < wanted; round++) {
    const stream = ownStream(expand(sha256(key), concat(info, u32(round)), 32), 4 * wanted);
    const words = new DataView(stream.buffer);
    for (let i = 0; i < wanted && values.length < wanted; i++) {
      const word = words.getUint32(4 * i);
      if (word !== 0xffffffff) values.push(word % PRIME);
    }
  }
  return Array.from({ length: threshold - 1 }, (_, p) => values.slice(p * LIMBS, (p + 1) * LIMBS));
}
