/** Domain tags and hashes of PROTOCOL §4, and the halves of HKDF-SHA256. */

import { expand as hkdfExpand, extract as hkdfExtract } from '@noble/hashes/hkdf.js';
import { sha256 as nobleSha256 } from '@noble/hashes/sha2.js';

import { blob, concat, copy, text, u16, utf8, type Bytes } from './bytes.js';

const PROTOCOL = blob(utf8('SecAgg/1'));

/** SHA-256 without a tag. */
export function sha256(bytes: Uint8Array): Bytes {
  return copy(nobleSha256(bytes));
}

/** The tag that opens what is hashed, signed or derived for one role and use. */
export function tag(role: string, usage: string, suite: number): Bytes {
  return concat(PROTOCOL, blob(u16(suite)), text(role), text(usage));
}

/** H(usage; parts) of PROTOCOL §4, of 32 bytes. */
export function hash(suite: number, usage: string, ...parts: readonly Uint8Array[]): Bytes {
  const digest = nobleSha256.create();
  digest.update(tag('hash', usage, suite));
  for (const part of parts) digest.update(blob(part));
  return copy(digest.digest());
}

/** HKDF-Extract with SHA-256. */
export function extract(salt: Uint8Array, secret: Uint8Array): Bytes {
  return copy(hkdfExtract(nobleSha256, secret, salt));
}

/** HKDF-Expand with SHA-256. */
export function expand(key: Uint8Array, info: Uint8Array, length: number): Bytes {
  return copy(hkdfExpand(nobleSha256, key, info, length));
}
