/**
 * How calls reach an aggregator, and what they carry.
 *
 * A transport proves who answers before anything leaves (R5.0-1, R5.0-6); all else is
 * bytes. {@link AggregatorCalls} puts the messages of `secagg.v1` over it.
 */

import { concat, equal, type Bytes } from './bytes.js';
import { SecAggError } from './errors.js';
import { sha256 } from './hash.js';
import { KINDS } from './messages.js';
import { FieldReader, writeFields, type FieldValue } from './protobuf.js';

/** An aggregator as its connection has proven it. */
export interface ProvenAggregator {
  readonly aggregator: string;
  readonly trustDomain: string;
  /** TLS may end in a proxy that reads along, so that profile 1 hides nothing (R10.3-4). */
  readonly proxied?: boolean;
}

/** Carries unary calls of `secagg.v1.SecAggService`. */
export interface Transport {
  /** Name of this client, as the aggregator will take it from the transport's credentials. */
  readonly identity: string;
  /**
   * Finds out by a handshake of its own who answers; again at each call.
   *
   * @throws SecAggError UNREACHABLE, which may pass, or BAD_CERTIFICATE, which will not.
   */
  meet(): Promise<ProvenAggregator>;
  /**
   * Makes one call.
   *
   * @param method Its name, for example "GetOffer".
   * @param request Protobuf bytes.
   * @param timeoutMs When to give it up as UNREACHABLE.
   * @throws SecAggError What the aggregator's error detail says, or UNREACHABLE.
   */
  call(method: string, request: Bytes, timeoutMs: number): Promise<Bytes>;
  /** Closes connections; calls under way fail. */
  close(): void;
}

/** Large objects of a session, by number of `messages.proto`. */
export const BLOBS = {
  payload: 1,
  sum: 2,
  roster: 3,
  delivery: 4,
  neighbourhood: 5,
  quorum: 6,
  revocations: 7,
} as const;

/** A message of the aggregator that opens a round or ends the session. */
export interface Update {
  readonly kind: number;
  readonly message: Bytes;
}

/** "Not yet": when to ask again. */
export interface Wait {
  readonly retryAfterMs: number;
  /**
   * Until the open round closes, told once this client's answer to it is stored; null where
   * it is not, and has to be sent again.
   */
  readonly closesInMs: number | null;
}

/** How far an upload has come. */
export interface UploadStatus {
  readonly nextOffset: number;
  readonly complete: boolean;
}

const CHUNK = 1 << 20;
/** Objects in place of messages are smaller than this (messages.proto, BlobReference). */
const MOST_REFERENCE = 72_000_000;
/** Longest wait that an aggregator may ask for. */
const MOST_WAIT_MS = 3_600_000;
/** Longest deadline of a round: beyond it a client would sleep through the session's end. */
const MOST_CLOSES_IN_MS = 604_800_000n;
const SHORT_MS = 15_000;
const LONG_MS = 90_000;

const METHOD_OF_KIND: ReadonlyMap<number, readonly [string, number]> = new Map([
  [KINDS.advert, ['AdvertiseKeys', SHORT_MS]],
  [KINDS.bundles, ['ShareKeys', LONG_MS]],
  [KINDS.complaint, ['ReportViolation', SHORT_MS]],
  [KINDS.consistency, ['SignConsistency', SHORT_MS]],
  [KINDS.shares, ['RevealShares', LONG_MS]],
]);

/** The calls of the service, typed. Each is idempotent: repeat it with the same bytes. */
export class AggregatorCalls {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  async #call(
    method: string,
    fields: readonly (readonly [number, FieldValue])[],
    timeoutMs: number,
  ): Promise<FieldReader> {
    const answer = await this.#transport.call(method, writeFields(fields), timeoutMs);
    return reading(() => new FieldReader(answer));
  }

  /** Asks for a session of a task with a higher number than `afterSession`. */
  async getOffer(taskId: string, afterSession: bigint, waitMs: number): Promise<Bytes | Wait> {
    const answer = await this.#call(
      'GetOffer',
      [
        [1, taskId],
        [2, afterSession],
        [3, waitMs],
      ],
      LONG_MS,
    );
    return reading(() => (answer.has(1) ? answer.bytes(1) : waitOf(answer, 2)));
  }

  /** Sends an advert, bundles, a complaint, a signature or shares. */
  async send(sid: Bytes, kind: number, message: Bytes): Promise<void> {
    const call = METHOD_OF_KIND.get(kind);
    if (call === undefined) throw new TypeError(`no call carries a message of the kind ${kind}`);
    await this.#call(
      call[0],
      [
        [1, sid],
        [2, message],
      ],
      call[1],
    );
  }

  /** Asks for what opens a round after the one named; the answer may take `waitMs`. */
  async getUpdate(sid: Bytes, after: number, waitMs = 0): Promise<Update | Wait> {
    const answer = await this.#call(
      'GetUpdate',
      [
        [1, sid],
        [2, after],
        [3, waitMs],
      ],
      LONG_MS,
    );
    if (!answer.has(1)) return reading(() => waitOf(answer, 2));
    const found = reading(() => {
      const update = new FieldReader(answer.bytes(1));
      const kind = Number(update.integer(1));
      return { kind, message: update.bytes(2), reference: referenceOf(update) };
    });
    const { kind, reference } = found;
    if (reference === null) return { kind, message: found.message };
    return {
      kind,
      message: await this.fetch(sid, reference.blob, reference.size, reference.digest),
    };
  }

  /** Asks from where an upload continues, with the view of the session (R5.3-14). */
  async getUploadStatus(sid: Bytes, view: Bytes): Promise<UploadStatus> {
    const answer = await this.#call(
      'GetUploadStatus',
      [
        [1, sid],
        [2, view],
      ],
      SHORT_MS,
    );
    return reading(() => statusOf(answer));
  }

  /** Sends the piece of an upload that begins at `offset`. */
  async uploadChunk(
    sid: Bytes,
    view: Bytes,
    upload: Bytes,
    digest: Bytes,
    offset: number,
  ): Promise<UploadStatus> {
    const answer = await this.#call(
      'UploadChunk',
      [
        [1, sid],
        [2, offset],
        [3, upload.length],
        [4, digest],
        [5, upload.subarray(offset, offset + CHUNK)],
        [6, view],
      ],
      LONG_MS,
    );
    return reading(() => statusOf(answer));
  }

  /**
   * Reads a large object whole.
   *
   * @param most Its size where it is known, else the largest that is taken; bytes.
   * @param digest Its SHA-256; what has another one is refused (R10-3).
   */
  async fetch(sid: Bytes, blob: number, most: number, digest: Bytes): Promise<Bytes> {
    const pieces: Bytes[] = [];
    let offset = 0;
    for (;;) {
      const answer = await this.#call(
        'FetchChunk',
        [
          [1, sid],
          [2, blob],
          [3, offset],
          [4, CHUNK],
        ],
        LONG_MS,
      );
      const [data, total] = reading(() => [answer.bytes(1), Number(answer.integer(2))] as const);
      if (total > most) mismatch(`an object of ${total} bytes in place of ${most}`);
      pieces.push(data);
      offset += data.length;
      if (offset >= total) break;
      if (data.length === 0) mismatch('an object that is cut short');
    }
    const object = concat(...pieces);
    if (!equal(sha256(object), digest)) mismatch('an object with another hash than was said');
    return object;
  }
}

function mismatch(what: string): never {
  throw new SecAggError('PAYLOAD_MISMATCH', `the aggregator has sent ${what}`);
}

function unreadable(what: string): never {
  throw new SecAggError('BAD_ENCODING', `the aggregator has sent ${what}`);
}

function reading<T>(read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (error instanceof SyntaxError) unreadable(error.message);
    throw error;
  }
}

interface Reference {
  readonly blob: number;
  readonly size: number;
  readonly digest: Bytes;
}

function referenceOf(update: FieldReader): Reference | null {
  if (!update.has(3)) return null;
  const fields = new FieldReader(update.bytes(3));
  const size = Number(fields.integer(2));
  if (size >= MOST_REFERENCE) throw new SyntaxError('a reference to an object too large');
  return { blob: Number(fields.integer(3)), size, digest: fields.bytes(1) };
}

function waitOf(answer: FieldReader, field: number): Wait {
  const wait = new FieldReader(answer.bytes(field));
  const asked = Number(wait.integer(1));
  const closesIn = wait.has(4) ? wait.integer(4) : null;
  if (closesIn !== null && closesIn > MOST_CLOSES_IN_MS) {
    throw new SyntaxError('a round that closes later than any round lasts');
  }
  return {
    retryAfterMs: Math.min(Math.max(asked, 1), MOST_WAIT_MS),
    closesInMs: closesIn === null ? null : Number(closesIn),
  };
}

function statusOf(answer: FieldReader): UploadStatus {
  const status = new FieldReader(answer.bytes(1));
  return { nextOffset: Number(status.integer(1)), complete: status.integer(2) !== 0n };
}
