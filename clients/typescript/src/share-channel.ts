/** The channel on which a dealer gives its shares to a holder (PROTOCOL §6.1). */

import { blob, concat, Reader, u32, type Bytes } from './bytes.js';
import { open, seal } from './crypto.js';
import { SecAggError, type ErrorName } from './errors.js';
import { expand, extract, tag } from './hash.js';
import { BUNDLE_BYTES } from './messages.js';
import { decodeShare, SHARE_BYTES } from './shamir.js';

/** The two shares that a holder has of a dealer, as they travel. */
export interface HeldShares {
  /** Share of s^SK. */
  readonly key: Bytes;
  /** Share of b. */
  readonly seed: Bytes;
}

/** Key of the channel from u to v; `secret` is what their channel keys agree on. */
export function shareKey(
  suite: number,
  sid: Bytes,
  ctx1: Bytes,
  u: number,
  v: number,
  secret: Bytes,
): Bytes {
  const info = concat(tag('client', 'share', suite), blob(ctx1), u32(u), u32(v));
  return expand(extract(sid, secret), info, 32);
}

/** What a bundle is authenticated together with. */
export function shareAssociatedData(suite: number, ctx1: Bytes, u: number, v: number): Bytes {
  return concat(tag('client', 'share bundle', suite), blob(ctx1), u32(u), u32(v));
}

/** Seals the shares that dealer u gives to holder v; 96 bytes. */
export function sealBundle(
  suite: number,
  sid: Bytes,
  ctx1: Bytes,
  u: number,
  v: number,
  abscissa: number,
  secret: Bytes,
  shares: HeldShares,
): Bytes {
  return seal(
    shareKey(suite, sid, ctx1, u, v, secret),
    concat(u32(u), u32(v), u32(abscissa), shares.key, shares.seed),
    shareAssociatedData(suite, ctx1, u, v),
  );
}

/** Why a bundle is of no use (R5.3-7). */
export interface BadBundle {
  readonly error: ErrorName;
}

/** Opens the bundle that dealer u gave to holder v, or says what is wrong with it (R5.3-7). */
export function openBundle(
  suite: number,
  sid: Bytes,
  ctx1: Bytes,
  u: number,
  v: number,
  abscissa: number,
  secret: Bytes,
  bundle: Uint8Array,
): HeldShares | BadBundle {
  const plaintext =
    bundle.length === BUNDLE_BYTES
      ? open(
          shareKey(suite, sid, ctx1, u, v, secret),
          bundle,
          shareAssociatedData(suite, ctx1, u, v),
        )
      : undefined;
  if (plaintext === undefined) return { error: 'BAD_SHARE_CIPHERTEXT' };
  const reader = new Reader(plaintext, 'a bundle');
  const ends = [reader.u32(), reader.u32(), reader.u32()];
  const key = reader.take(SHARE_BYTES);
  const seed = reader.take(SHARE_BYTES);
  if (ends[0] !== u || ends[1] !== v || ends[2] !== abscissa) return { error: 'SHARE_CONFUSION' };
  try {
    decodeShare(key);
    decodeShare(seed);
  } catch (error) {
    if (error instanceof SecAggError) return { error: 'SHARE_CONFUSION' };
    throw error;
  }
  return { key, seed };
}
