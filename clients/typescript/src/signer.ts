/** Identity keys: what signs for a client, without saying where the key lies. */

import type { Bytes } from './bytes.js';
import { ed25519PublicKey, ed25519Sign, randomBytes } from './crypto.js';

/**
 * Signs by a client's Ed25519 identity key.
 *
 * In a browser the key may be a CryptoKey that cannot be exported; hence the promise.
 */
export interface Signer {
  /** Public key, 32 bytes. */
  readonly publicKey: Bytes;
  /** Signs a message; 64 bytes. */
  sign(message: Bytes): Promise<Bytes>;
}

/** An identity key whose seed is in memory; prints as its public key alone. */
export class SeedSigner implements Signer {
  readonly #seed: Bytes;
  readonly publicKey: Bytes;

  /** @param seed The 32 bytes of `identity.seed`. */
  constructor(seed: Uint8Array) {
    if (seed.length !== 32) throw new RangeError('an identity seed has 32 bytes');
    this.#seed = new Uint8Array(seed);
    this.publicKey = ed25519PublicKey(this.#seed);
  }

  /** Draws a new key. */
  static generate(): { signer: SeedSigner; seed: Bytes } {
    const seed = randomBytes(32);
    return { signer: new SeedSigner(seed), seed };
  }

  sign(message: Bytes): Promise<Bytes> {
    return Promise.resolve(ed25519Sign(this.#seed, message));
  }
}

/** An identity key of WebCrypto, which can be made so that no script can export it. */
export class WebCryptoSigner implements Signer {
  readonly #key: CryptoKey;
  readonly publicKey: Bytes;

  /**
   * @param key Private key of "Ed25519" with the usage "sign".
   * @param publicKey Its public half, 32 bytes.
   */
  constructor(key: CryptoKey, publicKey: Uint8Array) {
    if (publicKey.length !== 32) throw new RangeError('a public key has 32 bytes');
    this.#key = key;
    this.publicKey = new Uint8Array(publicKey);
  }

  /** Makes a key pair that cannot be exported; keep `pair` in IndexedDB. */
  static async generate(): Promise<{ signer: WebCryptoSigner; pair: CryptoKeyPair }> {
    const pair = (await globalThis.crypto.subtle.generateKey({ name: 'Ed25519' }, false, [
      'sign',
      'verify',
    ])) as CryptoKeyPair;
    const raw = await globalThis.crypto.subtle.exportKey('raw', pair.publicKey);
    return { signer: new WebCryptoSigner(pair.privateKey, new Uint8Array(raw)), pair };
  }

  async sign(message: Bytes): Promise<Bytes> {
    return new Uint8Array(
      await globalThis.crypto.subtle.sign({ name: 'Ed25519' }, this.#key, message),
    );
  }
}
