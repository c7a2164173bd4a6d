/** The encoding of PROTOCOL §3.1: big-endian integers, blobs and text. */

import { SecAggError } from './errors.js';

/** Bytes of their own buffer, as WebCrypto wants them. */
export type Bytes = Uint8Array<ArrayBuffer>;

const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
const ENCODER = new TextEncoder();

/** Joins byte strings without separators. */
export function concat(...parts: readonly Uint8Array[]): Bytes {
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let offset = 0;
  for (const part of parts) {
    out.set(part, offset);
    offset += part.length;
  }
  return out;
}

/** Copies bytes into a buffer of their own. */
export function copy(bytes: Uint8Array): Bytes {
  return new Uint8Array(bytes);
}

/** Compares byte strings; not in constant time, hence for public bytes only. */
export function equal(a: Uint8Array, b: Uint8Array): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

/** Orders byte strings as a dictionary does; the result is negative, zero or positive. */
export function compare(a: Uint8Array, b: Uint8Array): number {
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i++) {
    const difference = a[i]! - b[i]!;
    if (difference !== 0) return difference;
  }
  return a.length - b.length;
}

/** Says whether all bytes are zero. */
export function isZero(bytes: Uint8Array): boolean {
  return bytes.every((byte) => byte === 0);
}

/** Writes bytes as hexadecimal digits of lower case. */
export function toHex(bytes: Uint8Array): string {
  let text = '';
  for (const byte of bytes) text += byte.toString(16).padStart(2, '0');
  return text;
}

/** Reads hexadecimal digits; throws a TypeError for any other text. */
export function fromHex(text: string): Bytes {
  if (text.length % 2 !== 0 || !/^[0-9a-fA-F]*$/.test(text)) {
    throw new TypeError('not hexadecimal digits, two for each byte');
  }
  const out = new Uint8Array(text.length / 2);
  for (let i = 0; i < out.length; i++) out[i] = Number.parseInt(text.slice(2 * i, 2 * i + 2), 16);
  return out;
}

/** Encodes one byte. */
export function u8(value: number): Bytes {
  return integer(BigInt(value), 1);
}

/** Encodes two bytes, big-endian. */
export function u16(value: number): Bytes {
  return integer(BigInt(value), 2);
}

/** Encodes four bytes, big-endian. */
export function u32(value: number): Bytes {
  return integer(BigInt(value), 4);
}

/** Encodes eight bytes, big-endian. */
export function u64(value: bigint | number): Bytes {
  return integer(BigInt(value), 8);
}

function integer(value: bigint, width: number): Bytes {
  if (value < 0n || value >> BigInt(8 * width) !== 0n) {
    throw new RangeError(`${value} is not an unsigned integer of ${width} bytes`);
  }
  const out = new Uint8Array(width);
  let rest = value;
  for (let i = width - 1; i >= 0; i--) {
    out[i] = Number(rest & 255n);
    rest >>= 8n;
  }
  return out;
}

/** Encodes a byte string of variable length, behind its length as u32. */
export function blob(bytes: Uint8Array): Bytes {
  return concat(u32(bytes.length), bytes);
}

/** Encodes text as UTF-8 without a length; text must be well-formed and hold no U+0000. */
export function utf8(text: string): Bytes {
  if (/\p{Surrogate}/u.test(text)) throw new RangeError('text with an unpaired surrogate');
  if (text.includes('\0')) throw new RangeError('text with U+0000');
  return ENCODER.encode(text);
}

/** Encodes text as a blob of UTF-8. */
export function text(value: string): Bytes {
  return blob(utf8(value));
}

/** Refuses bytes that are not the encoding of what was expected (R3.1-1). */
export function badEncoding(message: string, rule = 'R3.1-1'): never {
  throw new SecAggError('BAD_ENCODING', message, { rule });
}

/** Decodes text that arrived without a length; refuses what is no UTF-8 (R3.1-1, R3.1-3). */
export function decodeUtf8(bytes: Uint8Array, what: string): string {
  let value: string;
  try {
    value = UTF8.decode(bytes);
  } catch {
    return badEncoding(`${what} is not UTF-8`);
  }
  if (value.includes('\0')) badEncoding(`${what} holds U+0000`, 'R3.1-3');
  return value;
}

/** Reads a canonical encoding from its first byte to its last (R3.1-1). */
export class Reader {
  readonly #bytes: Uint8Array;
  readonly #what: string;
  #offset = 0;

  /**
   * @param bytes What a peer has sent.
   * @param what Its name in errors, for example "the roster".
   */
  constructor(bytes: Uint8Array, what: string) {
    this.#bytes = bytes;
    this.#what = what;
  }

  /** Bytes that are not read yet. */
  get remaining(): number {
    return this.#bytes.length - this.#offset;
  }

  /** Bytes that were read. */
  get offset(): number {
    return this.#offset;
  }

  /** Copies the next bytes. */
  take(length: number): Bytes {
    if (length > this.remaining) badEncoding(`${this.#what} is cut short`);
    // Not slice: that of a Buffer is a view.
    const out = copy(this.#bytes.subarray(this.#offset, this.#offset + length));
    this.#offset += length;
    return out;
  }

  /** Reads one byte. */
  u8(): number {
    return this.take(1)[0]!;
  }

  /** Reads two bytes. */
  u16(): number {
    const [a, b] = this.take(2);
    return a! * 256 + b!;
  }

  /** Reads four bytes. */
  u32(): number {
    const [a, b, c, d] = this.take(4);
    return a! * 2 ** 24 + b! * 2 ** 16 + c! * 256 + d!;
  }

  /** Reads eight bytes. */
  u64(): bigint {
    return (BigInt(this.u32()) << 32n) | BigInt(this.u32());
  }

  /** Reads a byte string of variable length, between `least` and `most` bytes. */
  blob(most = 0xffffffff, least = 0): Bytes {
    const length = this.u32();
    if (length < least || length > most) {
      badEncoding(`${this.#what} has a part of ${length} bytes in place of ${least} to ${most}`);
    }
    return this.take(length);
  }

  /** Reads a text of `least` to `most` bytes. */
  text(least: number, most: number): string {
    return decodeUtf8(this.blob(most, least), this.#what);
  }

  /** Refuses a number of things that take more bytes than there are. */
  count(number: number, width: number): number {
    if (number * width > this.remaining) badEncoding(`${this.#what} is cut short`);
    return number;
  }

  /** Refuses bytes that are left. */
  end(): void {
    if (this.remaining !== 0) badEncoding(`${this.#what} has ${this.remaining} bytes too many`);
  }
}
