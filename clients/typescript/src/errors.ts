/**
 * Names and numbers of everything that can go wrong.
 *
 * 1 to 39 are the abort codes of PROTOCOL §9, 40 to 59 those of the service around the
 * protocol (`errors.proto`), 60 and above belong to this machine and never travel.
 */

/** Number of each error. Numbers are never reused. */
export const ERROR_CODES = {
  BAD_VERSION: 1,
  BAD_CONFIG: 2,
  POLICY_VIOLATION: 3,
  BAD_SIGNATURE: 4,
  BAD_PUBLIC_KEY: 5,
  DUPLICATE_KEY: 6,
  SELF_MISSING: 7,
  ROSTER_TOO_SMALL: 8,
  ROSTER_TOO_LARGE: 9,
  BAD_SHARE_CIPHERTEXT: 10,
  SHARE_CONFUSION: 11,
  U2_TOO_SMALL: 12,
  U3_INVALID: 13,
  U3_TOO_SMALL: 14,
  TOO_MANY_DROPOUTS: 15,
  NO_QUORUM: 16,
  EQUIVOCATION: 17,
  REPLAYED_SESSION: 18,
  UNEXPECTED_MESSAGE: 19,
  BAD_VECTOR: 20,
  DEADLINE: 21,
  RECONSTRUCTION_FAILED: 22,
  BAD_NOISE_REVEAL: 23,
  PAYLOAD_MISMATCH: 24,
  INTERNAL: 25,
  BAD_ENCODING: 26,
  TOO_FEW_ANSWERS: 27,
  BAD_CREDENTIAL: 28,
  BAD_PROOF: 29,
  BAD_EDGES: 30,
  DISPUTED: 31,
  VIEW_DIFFERS: 32,
  BAD_CLOCK: 33,
  UNKNOWN_SESSION: 40,
  UNAUTHENTICATED: 41,
  NOT_INVITED: 42,
  SESSION_OVER: 43,
  OVERLOADED: 44,
  STORAGE_FAILED: 45,
  SHUTTING_DOWN: 46,
  UPLOAD_CORRUPT: 47,
  UNREACHABLE: 48,
  CANCELLED: 49,
  TASK_OVER: 50,
  STATE_DAMAGED: 60,
  STATE_LOCKED: 61,
  BUDGET_SPENT: 62,
  BAD_SETTINGS: 63,
  BAD_CERTIFICATE: 64,
  RESTORED_STATE: 65,
} as const;

/** Name of an error. */
export type ErrorName = keyof typeof ERROR_CODES;

const NAMES = new Map<number, ErrorName>(
  Object.entries(ERROR_CODES).map(([name, code]) => [code, name as ErrorName]),
);

/**
 * Returns the name of an abort code that a peer has sent.
 *
 * A code that this version does not know reads as INTERNAL (PROTOCOL §3.4), as does one
 * that never travels.
 */
export function errorNameOf(code: number): ErrorName {
  const name = code < 60 ? NAMES.get(code) : undefined;
  return name ?? 'INTERNAL';
}

/** What else an error knows: the rule that was broken, and what to do now. */
export interface ErrorNotes {
  /** Rule of PROTOCOL.md, for example "R5.2-3". */
  readonly rule?: string;
  /** What to do now, one imperative sentence. */
  readonly nextStep?: string;
  /** Milliseconds after which trying again may help. */
  readonly retryAfterMs?: number;
  /** First byte of an upload that the aggregator misses, with UPLOAD_CORRUPT only. */
  readonly nextOffset?: bigint;
}

/**
 * Says that a message, an offer, a setting or the service is not as it must be.
 *
 * No text holds a secret value.
 */
export class SecAggError extends Error {
  /** Number of the error, see {@link ERROR_CODES}. */
  readonly code: number;
  /** Name of the error. */
  readonly error: ErrorName;
  /** Rule of PROTOCOL.md that was broken, where there is one. */
  readonly rule: string | undefined;
  /** What to do now; empty where nothing can be done. */
  readonly nextStep: string;
  /** Milliseconds after which trying again may help. */
  readonly retryAfterMs: number | undefined;
  /** First byte of an upload that the aggregator misses. */
  readonly nextOffset: bigint | undefined;

  constructor(error: ErrorName, message: string, notes: ErrorNotes = {}) {
    const rule = notes.rule === undefined ? '' : ` (${notes.rule})`;
    const next = notes.nextStep === undefined ? '' : ` ${notes.nextStep}`;
    super(`${error}: ${message}${rule}.${next}`);
    this.name = 'SecAggError';
    this.error = error;
    this.code = ERROR_CODES[error];
    this.rule = notes.rule;
    this.nextStep = notes.nextStep ?? '';
    this.retryAfterMs = notes.retryAfterMs;
    this.nextOffset = notes.nextOffset;
  }
}

/** Throws the error of a broken rule. */
export function refuse(error: ErrorName, rule: string, message: string): never {
  throw new SecAggError(error, message, { rule });
}
