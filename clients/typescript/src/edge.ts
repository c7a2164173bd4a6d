/**
 * Calls over HTTPS, each signed by the identity key (PROTOCOL §10.3); for Node and browsers.
 *
 * 1. Every request is signed for the authority of the settings; no redirect is followed.
 * 2. Of an answer, the error detail is believed, and nothing in its headers.
 * 3. It says that TLS may end in a proxy, unless its owner knows better: a client then takes
 *    part in no session of profile 1 (R10.3-4).
 */

import { copy, type Bytes } from './bytes.js';
import { encodeHeldCredential, type HeldCredential } from './enrolment.js';
import { SecAggError } from './errors.js';
import { sha256 } from './hash.js';
import { decodeErrorDetail, type ErrorDetail } from './protobuf.js';
import type { Signer } from './signer.js';
import type { ProvenAggregator, Transport } from './transport.js';

/** Where an HTTP edge is, and who calls it. */
export interface EdgeSettings {
  /** Host name in lower case, and `:port` unless that is 443, as the operator says it. */
  readonly authority: string;
  /** Name of the aggregator, as the operator says it (R10.3-1). */
  readonly aggregator: string;
  readonly signer: Signer;
  readonly credential: HeldCredential;
  /** TLS is known to end in the aggregator, so that profile 1 may be offered (R10.3-4). */
  readonly direct?: boolean;
  /** Milliseconds since 1970; the system's clock by default. */
  readonly clock?: () => number;
  /** What makes requests; the platform's `fetch` by default. */
  readonly fetch?: typeof fetch;
}

const SERVICE = '/secagg.v1.SecAggService/';
const COVERED = '("@method" "@authority" "@path" "content-digest" "secagg-credential")';
/** A message of the service is smaller. */
const MOST_BODY_BYTES = 4 << 20;
/** Most that the time of a proof is corrected by (R10.3-3). */
const MOST_CORRECTION_SECONDS = 3600;
const TOO_MANY = 429;

function base64(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes));
}

function base64Url(bytes: Uint8Array): string {
  return base64(bytes).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
}

/** Calls an aggregator's HTTP edge by `fetch`. */
export class EdgeTransport implements Transport {
  readonly identity: string;
  readonly #settings: EdgeSettings;
  readonly #credential: string;
  readonly #key: string;
  readonly #closed = new AbortController();
  #correction: number | null = null;

  constructor(settings: EdgeSettings) {
    if (
      !/^[a-z0-9.-]+(:[1-9][0-9]{0,4})?$|^\[[0-9a-f:]+\](:[1-9][0-9]{0,4})?$/.test(
        settings.authority,
      )
    ) {
      throw new SecAggError(
        'BAD_SETTINGS',
        `"${settings.authority}" is not a host name and a port`,
      );
    }
    if (settings.authority.endsWith(':443')) {
      throw new SecAggError('BAD_SETTINGS', 'an authority is written without the port 443');
    }
    this.#settings = settings;
    this.identity = settings.credential.name;
    this.#credential = base64Url(encodeHeldCredential(settings.credential));
    this.#key = base64Url(sha256(settings.signer.publicKey));
  }

  /** Says who answers; its certificate is proven by TLS at every call (R10.3-1). */
  meet(): Promise<ProvenAggregator> {
    const { aggregator, credential, direct } = this.#settings;
    const { trustDomain } = credential;
    return Promise.resolve({ aggregator, trustDomain, proxied: direct !== true });
  }

  call(method: string, request: Bytes, timeoutMs: number): Promise<Bytes> {
    return this.#corrected(method, request, timeoutMs);
  }

  close(): void {
    this.#closed.abort();
  }

  /** Calls again, once, where the edge says that this machine's clock is wrong (R10.3-3). */
  async #corrected(method: string, request: Bytes, timeoutMs: number): Promise<Bytes> {
    try {
      return await this.#call(method, request, timeoutMs);
    } catch (error) {
      if (!(error instanceof EdgeError) || this.#correction !== null) throw error;
      if (error.error !== 'UNAUTHENTICATED' || error.serverTime === undefined) throw error;
      const correction = Number(error.serverTime) - this.#seconds;
      if (!(Math.abs(correction) <= MOST_CORRECTION_SECONDS)) {
        throw new SecAggError(
          'BAD_CLOCK',
          `this machine's clock differs from the aggregator's by ${correction} s`,
          { rule: 'R10.3-3', nextStep: 'Correct the clock that is wrong.' },
        );
      }
      this.#correction = correction;
    }
    return this.#call(method, request, timeoutMs);
  }

  get #seconds(): number {
    return Math.floor((this.#settings.clock ?? Date.now)() / 1000);
  }

  async #call(method: string, body: Bytes, timeoutMs: number): Promise<Bytes> {
    const path = SERVICE + method;
    const headers = await this.#headers(path, body);
    const { authority, fetch: given } = this.#settings;
    const timeout = AbortSignal.timeout(timeoutMs);
    let status: number;
    let answer: Bytes;
    try {
      const response = await (given ?? globalThis.fetch)(`https://${authority}${path}`, {
        method: 'POST',
        headers,
        body,
        redirect: 'error',
        credentials: 'omit',
        cache: 'no-store',
        referrerPolicy: 'no-referrer',
        signal: AbortSignal.any([timeout, this.#closed.signal]),
      });
      status = response.status;
      answer = await readBody(response);
    } catch (error) {
      if (error instanceof SecAggError) throw error;
      // A browser tells a page no more than that there was no answer.
      const why = timeout.aborted ? `within ${timeoutMs} ms` : (error as Error).message;
      throw unreachable(authority, `no answer: ${why}`);
    }
    if (status === 200) return answer;
    throw errorOf(authority, status, answer);
  }

  async #headers(path: string, body: Bytes): Promise<Record<string, string>> {
    const { authority, signer } = this.#settings;
    const digest = `sha-256=:${base64(sha256(body))}:`;
    const created = this.#seconds + (this.#correction ?? 0);
    const parameters = `${COVERED};created=${created};keyid="${this.#key}";alg="ed25519";tag="secagg-edge"`;
    const base =
      `"@method": POST\n"@authority": ${authority}\n"@path": ${path}\n` +
      `"content-digest": ${digest}\n"secagg-credential": ${this.#credential}\n` +
      `"@signature-params": ${parameters}`;
    const signature = await signer.sign(copy(new TextEncoder().encode(base)));
    return {
      'Secagg-Credential': this.#credential,
      'Content-Type': 'application/proto',
      'Content-Digest': digest,
      'Signature-Input': `sig=${parameters}`,
      Signature: `sig=:${base64(signature)}:`,
    };
  }
}

/** An error of the edge, with its clock where it has said it. */
class EdgeError extends SecAggError {
  readonly serverTime: bigint | undefined;

  constructor(detail: ErrorDetail) {
    super(detail.error, `the aggregator says: ${detail.message}`, {
      nextStep: detail.nextStep,
      ...(detail.retryAfterMs === undefined ? {} : { retryAfterMs: detail.retryAfterMs }),
      ...(detail.nextOffset === undefined ? {} : { nextOffset: detail.nextOffset }),
    });
    this.serverTime = detail.serverTime;
  }
}

/** Reads a body piece by piece: no answer fills the memory. */
async function readBody(response: Response): Promise<Bytes> {
  if (response.body === null) return new Uint8Array();
  const pieces: Uint8Array[] = [];
  let size = 0;
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > MOST_BODY_BYTES) {
      await reader.cancel();
      throw new SecAggError('BAD_ENCODING', 'the aggregator has sent an answer that is too long');
    }
    pieces.push(value);
  }
  const body = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    body.set(piece, at);
    at += piece.length;
  }
  return body;
}

function errorOf(authority: string, status: number, body: Bytes): SecAggError {
  const detail = detailIn(body);
  if (detail !== undefined) return new EdgeError(detail);
  if (status === TOO_MANY) {
    return new SecAggError('OVERLOADED', 'something on the way to the aggregator limits calls', {
      retryAfterMs: 1000,
    });
  }
  return unreachable(authority, `something on the way answered with status ${status}`);
}

function detailIn(body: Bytes): ErrorDetail | undefined {
  try {
    const document = JSON.parse(new TextDecoder().decode(body)) as {
      details: readonly { value: string }[];
    };
    const value = atob(document.details[0]!.value);
    return decodeErrorDetail(Uint8Array.from(value, (character) => character.charCodeAt(0)));
  } catch {
    // No JSON, no base64, or of another form: no aggregator has written it.
    return undefined;
  }
}

function unreachable(authority: string, why: string): SecAggError {
  return new SecAggError('UNREACHABLE', `${authority} cannot be reached: ${why}`, {
    nextStep: 'Check the address, the network and that the aggregator runs.',
    retryAfterMs: 1000,
  });
}
