/** The secrets of one client in one session, all derived from one seed (PROTOCOL §12). */

import { concat, u32, utf8, type Bytes } from './bytes.js';
import { expand, sha256 } from './hash.js';
import { drawCoefficients, type Coefficients } from './shamir.js';

/** What a client draws for a session. How is its own business; that it is unrelated is not. */
export interface SessionSecrets {
  /** Private X25519 key of the share channel. */
  readonly channelKey: Bytes;
  /** Private X25519 key of the masks, s^SK; the first secret that is shared. */
  readonly maskKey: Bytes;
  /** Self-mask seed b; the second secret that is shared. */
  readonly selfMaskSeed: Bytes;
  /** Seeds g_i of the layers of noise. */
  readonly noiseSeeds: readonly Bytes[];
  /** Polynomials of both secrets for one roster (R7.1-2). */
  coefficients(ctx1: Bytes): { readonly key: Coefficients; readonly seed: Coefficients };
  /** key_0 of §6.7: what base noise and rounding are drawn from, for one ctx2. */
  noiseKey(ctx2: Bytes): Bytes;
}

/** Draws the secrets of a session from its seed. */
export type DeriveSecrets = (
  seed: Bytes,
  sid: Bytes,
  threshold: number,
  noiseLayers: number,
) => SessionSecrets;

/** Derives all secrets of a session from 32 bytes of the operating system's randomness. */
export const deriveSecrets: DeriveSecrets = (seed, sid, threshold, noiseLayers) => {
  // The labels are this package's own: no other party derives these.
  const key = sha256(concat(utf8('secagg-ts/session'), sid, seed));
  const derive = (label: string, info: Bytes = new Uint8Array()): Bytes =>
    expand(key, concat(utf8(`secagg-ts/${label}/`), info), 32);
  return {
    channelKey: derive('channel key'),
    maskKey: derive('mask key'),
    selfMaskSeed: derive('self mask'),
    noiseSeeds: Array.from({ length: noiseLayers }, (_, i) => derive('noise layer', u32(i))),
    coefficients: (ctx1) => ({
      key: drawCoefficients(derive('polynomials of the key'), 'key', sid, ctx1, threshold),
      seed: drawCoefficients(derive('polynomials of the seed'), 'seed', sid, ctx1, threshold),
    }),
    noiseKey: (ctx2) => derive('noise', ctx2),
  };
};
