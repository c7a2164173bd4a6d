/** Sets of clients as bitmaps over the roster (PROTOCOL §3.3). */

import { badEncoding, type Bytes } from './bytes.js';

/** Encodes the set of the indices below `size`. */
export function encodeSet(size: number, members: Iterable<number>): Bytes {
  const out = new Uint8Array(Math.ceil(size / 8));
  for (const member of members) {
    if (!Number.isInteger(member) || member < 0 || member >= size) {
      throw new RangeError(`client ${member} is not one of ${size}`);
    }
    out[member >> 3]! |= 1 << (member & 7);
  }
  return out;
}

/** Decodes a set, ascending; refuses another length and padding bits (R3.1-1, R3.3-1). */
export function decodeSet(size: number, bitmap: Uint8Array, what: string): number[] {
  if (bitmap.length !== Math.ceil(size / 8)) {
    badEncoding(`${what} has ${bitmap.length} bytes for ${size} clients`);
  }
  const members: number[] = [];
  for (let i = 0; i < 8 * bitmap.length; i++) {
    if ((bitmap[i >> 3]! >> (i & 7)) & 1) members.push(i);
  }
  const last = members.at(-1);
  if (last !== undefined && last >= size) badEncoding(`${what} has a padding bit`, 'R3.3-1');
  return members;
}
