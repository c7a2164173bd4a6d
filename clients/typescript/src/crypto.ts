/** X25519, Ed25519, ChaCha20-Poly1305 and AES-CTR, with the refusals of PROTOCOL §6. */

import { chacha20, chacha20poly1305 } from '@noble/ciphers/chacha.js';
import { ed25519, x25519 } from '@noble/curves/ed25519.js';
import { sha512 } from '@noble/hashes/sha2.js';

import { concat, copy, equal, fromHex, isZero, type Bytes } from './bytes.js';
import { SecAggError } from './errors.js';

const POINT = ed25519.Point;
const ORDER = POINT.Fn.ORDER;
const FIELD = 2n ** 255n - 19n;
const ZERO_NONCE = new Uint8Array(12);

/** Encodings, below 2^255 − 19, of the points of small order on Curve25519 and its twist. */
const LOW_ORDER: readonly Bytes[] = [
  '0000000000000000000000000000000000000000000000000000000000000000',
  '0100000000000000000000000000000000000000000000000000000000000000',
  'e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800',
  '5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157',
  'ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f',
].map(fromHex);

/** Draws bytes from the operating system; the only source of randomness of this package. */
export function randomBytes(length: number): Bytes {
  const out = new Uint8Array(length);
  // One call of getRandomValues gives 65 536 bytes at most.
  for (let start = 0; start < length; start += 65536) {
    globalThis.crypto.getRandomValues(out.subarray(start, start + 65536));
  }
  return out;
}

function littleEndian(bytes: Uint8Array): bigint {
  let value = 0n;
  for (let i = bytes.length - 1; i >= 0; i--) value = (value << 8n) | BigInt(bytes[i]!);
  return value;
}

/** Public X25519 key of a private one of 32 bytes. */
export function x25519PublicKey(privateKey: Uint8Array): Bytes {
  return copy(x25519.getPublicKey(privateKey));
}

/** Says whether a public X25519 key is canonical and not of low order (R6-1, R5.2-4). */
export function isX25519Key(key: Uint8Array): boolean {
  return (
    key.length === 32 && littleEndian(key) < FIELD && !LOW_ORDER.some((point) => equal(point, key))
  );
}

/** The secret that two X25519 keys agree on; refuses an all-zero one (R6-1). */
export function agree(privateKey: Uint8Array, publicKey: Uint8Array): Bytes {
  let secret: Uint8Array | undefined;
  try {
    secret = x25519.getSharedSecret(privateKey, publicKey);
  } catch {
    secret = undefined;
  }
  if (secret === undefined || isZero(secret)) {
    throw new SecAggError('BAD_PUBLIC_KEY', 'a key of X25519 gives no secret', { rule: 'R6-1' });
  }
  return copy(secret);
}

/** Public Ed25519 key of a seed of 32 bytes. */
export function ed25519PublicKey(seed: Uint8Array): Bytes {
  return copy(ed25519.getPublicKey(seed));
}

/** Signs by Ed25519 without prehash or context. */
export function ed25519Sign(seed: Uint8Array, message: Uint8Array): Bytes {
  return copy(ed25519.sign(message, seed));
}

type Point = InstanceType<typeof POINT>;

function decodePoint(bytes: Uint8Array): Point | undefined {
  let point: Point;
  try {
    // Strict decoding refuses y >= p and the sign bit over x = 0.
    point = POINT.fromBytes(copy(bytes), false);
  } catch {
    return undefined;
  }
  return point.isSmallOrder() ? undefined : point;
}

/** Says whether a key is one under which a signature may hold (R6.6-1). */
export function isEd25519Key(key: Uint8Array): boolean {
  return key.length === 32 && decodePoint(key) !== undefined;
}

/** Says whether a signature holds by the strict rules of R6.6-1, without the cofactor. */
export function ed25519Verify(
  key: Uint8Array,
  message: Uint8Array,
  signature: Uint8Array,
): boolean {
  if (key.length !== 32 || signature.length !== 64) return false;
  const s = littleEndian(signature.subarray(32));
  if (s >= ORDER) return false;
  const a = decodePoint(key);
  const r = decodePoint(signature.subarray(0, 32));
  if (a === undefined || r === undefined) return false;
  const h = littleEndian(sha512(concat(signature.subarray(0, 32), key, message))) % ORDER;
  return POINT.BASE.multiplyUnsafe(s).equals(r.add(a.multiplyUnsafe(h)));
}

/** Seals one message under a key that seals no other (R6.1-1). */
export function seal(key: Uint8Array, plaintext: Uint8Array, associatedData: Uint8Array): Bytes {
  return copy(chacha20poly1305(key, ZERO_NONCE, associatedData).encrypt(plaintext));
}

/** Opens a sealed message, or returns undefined where it is not authentic. */
export function open(
  key: Uint8Array,
  sealed: Uint8Array,
  associatedData: Uint8Array,
): Bytes | undefined {
  try {
    return copy(chacha20poly1305(key, ZERO_NONCE, associatedData).decrypt(sealed));
  } catch {
    return undefined;
  }
}

/** A short stream for secrets that this client alone derives: the ChaCha20 keystream of a key. */
export function ownStream(key: Uint8Array, length: number): Bytes {
  return copy(chacha20(key, ZERO_NONCE, new Uint8Array(length)));
}

/** Bytes that one call of WebCrypto encrypts. */
const STREAM_PIECE = 1 << 20;
const ZEROS = new Uint8Array(STREAM_PIECE);

/**
 * The AES-CTR keystream of a key, from any block on.
 *
 * WebCrypto computes it, hence the promise. Streams of a mask begin at counter block
 * iv ‖ 00000002 (PROTOCOL §6.4), those of noise at block 0 (§6.7).
 */
export class KeyStream {
  readonly #key: CryptoKey;
  readonly #counter: bigint;

  private constructor(key: CryptoKey, counter: bigint) {
    this.#key = key;
    this.#counter = counter;
  }

  /**
   * Opens a stream.
   *
   * @param key 16 or 32 bytes.
   * @param counter First counter block, 16 bytes.
   */
  static async open(key: Uint8Array, counter: Uint8Array): Promise<KeyStream> {
    const imported = await globalThis.crypto.subtle.importKey(
      'raw',
      copy(key),
      { name: 'AES-CTR' },
      false,
      ['encrypt'],
    );
    let value = 0n;
    for (const byte of counter) value = (value << 8n) | BigInt(byte);
    return new KeyStream(imported, value);
  }

  /** Reads `length` bytes from byte `start` of the stream on. */
  async read(start: number, length: number): Promise<Bytes> {
    const skip = start % 16;
    const out = new Uint8Array(length);
    let block = BigInt(Math.floor(start / 16));
    let written = 0;
    let skipped = skip;
    while (written < length) {
      const wanted = Math.min(STREAM_PIECE, length - written + skipped);
      const piece = new Uint8Array(
        await globalThis.crypto.subtle.encrypt(
          { name: 'AES-CTR', counter: this.#block(block), length: 128 },
          this.#key,
          ZEROS.subarray(0, wanted),
        ),
      );
      out.set(piece.subarray(skipped), written);
      written += wanted - skipped;
      skipped = 0;
      block += BigInt(STREAM_PIECE / 16);
    }
    return out;
  }

  #block(index: bigint): Bytes {
    let value = (this.#counter + index) & ((1n << 128n) - 1n);
    const out = new Uint8Array(16);
    for (let i = 15; i >= 0; i--) {
      out[i] = Number(value & 255n);
      value >>= 8n;
    }
    return out;
  }
}
