/**
 * The protobuf messages of `protos/secagg/v1` that a client needs, written and read by hand.
 *
 * No message has a repeated field, a map or a signed number, so that each is a list of
 * varints and byte strings. A reader ignores fields that it does not know.
 */

import { concat, copy, type Bytes } from './bytes.js';
import { errorNameOf, type ErrorName } from './errors.js';
import { printable } from './enrolment.js';

const ENCODER = new TextEncoder();
const DECODER = new TextDecoder('utf-8', { fatal: true });

/** A value of a field: a number for varints, bytes or text for the rest. */
export type FieldValue = number | bigint | Uint8Array | string;

function varint(value: bigint): Bytes {
  const out: number[] = [];
  let rest = value;
  do {
    const low = Number(rest & 127n);
    rest >>= 7n;
    out.push(rest > 0n ? low | 128 : low);
  } while (rest > 0n);
  return Uint8Array.from(out);
}

/** Writes a message; fields that are zero or empty are omitted, as proto3 does. */
export function writeFields(fields: readonly (readonly [number, FieldValue])[]): Bytes {
  const parts: Uint8Array[] = [];
  for (const [number, value] of fields) {
    if (typeof value === 'number' || typeof value === 'bigint') {
      if (BigInt(value) === 0n) continue;
      parts.push(varint(BigInt(number) << 3n), varint(BigInt(value)));
      continue;
    }
    const bytes = typeof value === 'string' ? ENCODER.encode(value) : value;
    if (bytes.length === 0) continue;
    parts.push(varint((BigInt(number) << 3n) | 2n), varint(BigInt(bytes.length)), bytes);
  }
  return concat(...parts);
}

/** Fields of a message by number; of a number that comes twice the last one holds. */
export class FieldReader {
  readonly #values = new Map<number, bigint | Bytes>();

  /** @throws SyntaxError The bytes are no protobuf message. */
  constructor(bytes: Uint8Array) {
    let at = 0;
    const readVarint = (): bigint => {
      let value = 0n;
      for (let shift = 0n; shift < 70n; shift += 7n) {
        const byte = bytes[at++];
        if (byte === undefined) break;
        value |= BigInt(byte & 127) << shift;
        if (byte < 128) return value & ((1n << 64n) - 1n);
      }
      throw new SyntaxError('a number that is cut short or too long');
    };
    const take = (length: number): Bytes => {
      if (length > bytes.length - at) throw new SyntaxError('a field that is cut short');
      const out = copy(bytes.subarray(at, at + length));
      at += length;
      return out;
    };
    while (at < bytes.length) {
      const key = readVarint();
      const number = Number(key >> 3n);
      if (number === 0) throw new SyntaxError('a field without a number');
      switch (Number(key & 7n)) {
        case 0:
          this.#values.set(number, readVarint());
          break;
        case 1:
          take(8);
          break;
        case 2:
          this.#values.set(number, take(Number(readVarint())));
          break;
        case 5:
          take(4);
          break;
        default:
          throw new SyntaxError('a field of a type that protobuf does not have');
      }
    }
  }

  /** Whether a field is there. */
  has(number: number): boolean {
    return this.#values.has(number);
  }

  /** A number; 0 where the field is absent. */
  integer(number: number): bigint {
    const value = this.#values.get(number) ?? 0n;
    if (typeof value !== 'bigint') throw new SyntaxError('a field of another type');
    return value;
  }

  /** Bytes; empty where the field is absent. */
  bytes(number: number): Bytes {
    const value = this.#values.get(number) ?? new Uint8Array();
    if (typeof value === 'bigint') throw new SyntaxError('a field of another type');
    return value;
  }

  /** Text; empty where the field is absent. */
  text(number: number): string {
    try {
      return DECODER.decode(this.bytes(number));
    } catch (error) {
      if (error instanceof TypeError) throw new SyntaxError('text that is not UTF-8');
      throw error;
    }
  }
}

/** Whose fault an error is, by number of `errors.proto`; 2 is the service's. */
export type Fault = 1 | 2 | 3 | 4 | 5;

/** How a failed call says what went wrong. */
export interface ErrorDetail {
  readonly error: ErrorName;
  readonly fault: Fault;
  readonly message: string;
  readonly nextStep: string;
  readonly retryAfterMs: number | undefined;
  readonly sender: string;
  readonly alive: number;
  readonly needed: number;
  readonly nextOffset: bigint | undefined;
  /** The aggregator's clock in seconds since 1970, where this machine's is refused. */
  readonly serverTime: bigint | undefined;
}

/** Details have at most this many bytes (errors.proto). */
const MOST_DETAIL_BYTES = 4096;
/** As a client waits at most; a longer timer than 2^31 ms would not wait at all. */
const MOST_RETRY_MS = 3_600_000;

/**
 * Reads the trailer "secagg-error-bin"; undefined for bytes that are no detail.
 *
 * An unknown code reads as INTERNAL, an unknown fault as the service's.
 */
export function decodeErrorDetail(bytes: Uint8Array): ErrorDetail | undefined {
  if (bytes.length > MOST_DETAIL_BYTES) return undefined;
  try {
    const fields = new FieldReader(bytes);
    const fault = Number(fields.integer(2));
    return {
      error: errorNameOf(Number(fields.integer(1))),
      fault: fault >= 1 && fault <= 5 ? (fault as Fault) : 2,
      message: printable(fields.text(3)),
      nextStep: printable(fields.text(4)),
      retryAfterMs: fields.has(5) ? Math.min(Number(fields.integer(5)), MOST_RETRY_MS) : undefined,
      sender: printable(fields.text(6)),
      alive: Number(fields.integer(7)),
      needed: Number(fields.integer(8)),
      nextOffset: fields.has(9) ? fields.integer(9) : undefined,
      serverTime: fields.has(10) ? fields.integer(10) : undefined,
    };
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}
