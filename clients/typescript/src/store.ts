/** What a client keeps durably, and how a store keeps it. */

import type { Bytes } from './bytes.js';
import { SecAggError } from './errors.js';
import type { SessionRecord } from './session.js';

/** What one task of one aggregator of one trust domain has cost (R5.6-3). */
export interface Budget {
  /** SHA-256 of the noise block that the counts are of, hexadecimal; empty for exact sums. */
  readonly block: string;
  /** Sessions that count: kept charges, and one that is still open. */
  readonly kept: number;
  /** Charges that came back. */
  readonly returned: number;
  /** Rosters that were accepted on a ring (R11.3-1). */
  readonly rosters: number;
  /** Highest session number that this client took part in. */
  readonly lastSession: bigint;
}

/** Everything that a client keeps. It holds secrets while a session is open. */
export interface ClientState {
  readonly version: 1;
  /** Counts commits, so that a restored state can be told from the newest one. */
  readonly generation: number;
  /** The open session, or the last one. */
  readonly session: SessionRecord | null;
  /** Whether what became of that session was told to the program that called. */
  readonly reported: boolean;
  /** Trust domain of that session's aggregator. */
  readonly trustDomain: string;
  /** Budgets by {@link budgetKey}. */
  readonly budgets: { readonly [key: string]: Budget };
  /** Newest revocation list seen, as an encoded trust, by {@link listKey}. */
  readonly lists: { readonly [key: string]: Bytes };
}

/** The state of a client that has done nothing yet. */
export const EMPTY_STATE: ClientState = {
  version: 1,
  generation: 0,
  session: null,
  reported: true,
  trustDomain: '',
  budgets: {},
  lists: {},
};

/** Names the budget of a task. */
export function budgetKey(trustDomain: string, aggregator: string, taskId: string): string {
  return JSON.stringify([trustDomain, aggregator, taskId]);
}

/** Names what was seen of the revocation lists of an issuer. */
export function listKey(trustDomain: string, enrolmentKey: string): string {
  return JSON.stringify([trustDomain, enrolmentKey]);
}

/**
 * Keeps the state of one client. One process, or one tab, has it at a time.
 *
 * `commit` returns when the state would survive the loss of power; what the caller sends
 * afterwards relies on it.
 */
export interface Store {
  /** Reads the newest state; {@link EMPTY_STATE} where there is none. */
  load(): Promise<ClientState>;
  /** Puts a state in the place of the one before, whole or not at all. */
  commit(state: ClientState): Promise<void>;
  /** Lets go of the state. */
  close(): Promise<void>;
}

/** Keeps the state in memory alone: for tests, and for clients that never restart. */
export class MemoryStore implements Store {
  #state: ClientState = EMPTY_STATE;

  load(): Promise<ClientState> {
    return Promise.resolve(structuredClone(this.#state));
  }

  commit(state: ClientState): Promise<void> {
    this.#state = structuredClone(state);
    return Promise.resolve();
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}

/** Writes a state as text: JSON in which bytes and bigints are objects of one key. */
export function writeState(state: ClientState): string {
  return JSON.stringify(state, (_key, value: unknown) => {
    if (typeof value === 'bigint') return { $integer: value.toString() };
    if (value instanceof Uint8Array) return { $bytes: toBase64(value) };
    return value;
  });
}

/** Reads what {@link writeState} has written. */
export function readState(text: string): ClientState {
  let state: ClientState | null;
  try {
    state = JSON.parse(text, (_key, value: unknown) => {
      if (typeof value !== 'object' || value === null) return value;
      if ('$integer' in value) return BigInt(value.$integer as string);
      if ('$bytes' in value) return fromBase64(value.$bytes as string);
      return value;
    }) as ClientState | null;
  } catch {
    throw new SecAggError('STATE_DAMAGED', "this client's state cannot be read", {
      nextStep: 'Restore the disk, or enrol the client under another name.',
    });
  }
  if (state?.version !== 1) {
    throw new SecAggError('STATE_DAMAGED', "this client's state is of another version");
  }
  return state;
}

function toBase64(bytes: Uint8Array): string {
  let text = '';
  // One call takes a limited number of arguments.
  for (let i = 0; i < bytes.length; i += 8192) {
    text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  }
  return btoa(text);
}

function fromBase64(text: string): Bytes {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
