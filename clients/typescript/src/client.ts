/**
 * A client of one task: offers, sessions, restarts and its budget.
 *
 * 1. Every change is committed to the store before anything that follows from it leaves.
 * 2. What was committed is sent again after a restart, and nothing else in that session.
 * 3. Budget is charged in the commit that binds an input.
 */

import { equal, Reader, toHex, type Bytes } from './bytes.js';
import { randomBytes } from './crypto.js';
import {
  checkCredential,
  checkRevocationList,
  VerifiedCredentials,
  type HeldCredential,
} from './enrolment.js';
import { ERROR_CODES, SecAggError, type ErrorName } from './errors.js';
import { sha256 } from './hash.js';
import type { Residues } from './masks.js';
import { decodeAbort, decodeRelease, KINDS, type Ending } from './messages.js';
import { countedSessions, readSessionNoise, type SessionNoise } from './noise-block.js';
import { packedSize, unpack } from './packing.js';
import {
  decodeOffer,
  encodeTrust,
  openingContext,
  readTrust,
  type Offer,
  type Trust,
} from './parameters.js';
import {
  checkListAge,
  checkOffer,
  checkPayload,
  checkStoredOffer,
  DEFAULT_LIMITS,
  DEFAULT_POLICY,
  limitsOver,
  ROSTERS_FOR_EACH,
  type ClientPolicy,
  type PrivacyLimits,
} from './policy.js';
import { writeReceipt } from './receipt.js';
import {
  Session,
  type ChargeOutcome,
  type InputRequest,
  type NoiseTables,
  type Outgoing,
  type SessionOptions,
  type SessionRecord,
  type Step,
} from './session.js';
import type { Signer } from './signer.js';
import { budgetKey, listKey, type Budget, type ClientState, type Store } from './store.js';
import {
  AggregatorCalls,
  BLOBS,
  type ProvenAggregator,
  type Transport,
  type Update,
  type Wait,
} from './transport.js';
import { centre, encodeIntegers, type IntegerVector } from './vectors.js';

/** What a sum says. */
export interface SumEstimate {
  /** Estimate of the sum of all vectors, in the caller's units. */
  readonly values: Float64Array;
  /** Estimated part of the vectors that fitted the clip; null without a clip flag. */
  readonly fitted: number | null;
}

/** Encodes vectors of tasks with noise, and reads their sums (PROTOCOL §14). */
export interface NoiseEncoder extends NoiseTables {
  /** Encodes a vector, noise included; zeros for null. */
  encode(request: InputRequest, vector: Float64Array | null): Promise<Residues>;
  /** Reads a sum of so many inputs in the caller's units. */
  decode(
    residues: Residues,
    session: SessionNoise,
    sid: Bytes,
    suite: number,
    inputs: number,
  ): Promise<SumEstimate>;
}

/** What an enrolled client signs with, and whom it believes (PROTOCOL §2.1). */
export interface Enrolment {
  readonly signer: Signer;
  readonly credential: HeldCredential;
  /** Public key of the issuer, pinned; 32 bytes. */
  readonly enrolmentKey: Bytes;
}

/** Settings of a {@link Client}. */
export interface ClientSettings {
  readonly transport: Transport;
  readonly store: Store;
  /** Name of the task. */
  readonly taskId: string;
  /** Read before each session, so that a renewed credential is taken up; none in profile 1. */
  readonly enrolment?: () => Promise<Enrolment>;
  readonly policy?: Partial<ClientPolicy>;
  readonly limits?: Partial<PrivacyLimits>;
  /** What adds noise; without it, tasks with noise are refused. */
  readonly noise?: NoiseEncoder;
  /** Sessions that are tried until one releases a sum; 3 by default. */
  readonly attempts?: number;
  /** Seconds to wait for a session, and for an aggregator out of reach before it; 120 by default. */
  readonly waitSeconds?: number;
  /** Largest payload that is fetched; bytes, 2^30 by default. */
  readonly maxPayloadBytes?: number;
  /** Milliseconds since 1970; the system's clock by default. */
  readonly clock?: () => number;
  /** Waits; `setTimeout` by default. */
  readonly sleep?: (ms: number) => Promise<void>;
}

/**
 * What a client gives: integers for an exact task, finite doubles for one with noise.
 *
 * A function is given the payload of the session, null without one. In a task with noise,
 * zeros take the place of a vector that fails (R3.5-5).
 */
export type Input<V> = V | ((payload: Bytes | null) => V | Promise<V>);

/** Either kind of vector. */
export type InputVector = IntegerVector | Float64Array;

/** What became of a contribution. */
export interface Contribution {
  readonly sessionNumber: bigint;
  /** Whether a sum was released that holds this client's input. */
  readonly released: boolean;
  /** The sum: integers of an exact task, else estimates; null without one. */
  readonly sum: Float64Array | BigInt64Array | null;
  /** Estimated part of the vectors that fitted the clip; null where no clip flag says it. */
  readonly fitted: number | null;
  /** Inputs in the sum; 0 without one. */
  readonly survivors: number;
  /** Why there is no sum; null where there is one. */
  readonly error: ErrorName | null;
  /** What the aggregator said at the end; empty after a release. */
  readonly reason: string;
  /** Why zeros took the place of the vector; null where they did not. */
  readonly replaced: string | null;
  readonly charge: ChargeOutcome;
  /** The receipt, for `secagg sessions verify`. */
  readonly receipt: Bytes;
}

/** What one visit has come to. */
export interface Visit {
  /** When the next visit makes sense; earlier ones do no harm. */
  readonly comeBackMs: number;
  /** Of the session that it was about; 0 for none. */
  readonly sessionNumber: bigint;
  /** Whether a message was sent. */
  readonly sent: boolean;
  /** What became of the session, once it is over. */
  readonly contribution: Contribution | null;
}

/** How a visit is made. */
export interface VisitOptions {
  /** How long the aggregator may keep the question while there is no answer; 30 000 at most. */
  readonly heldMs?: number;
  /** How long calls that fail are tried again; 25 000 by default. */
  readonly visitMs?: number;
}

interface Source {
  /** Residues of an exact task. */
  integers(offer: Offer, sid: Bytes): Promise<Residues>;
  /** The vector of a task with noise. */
  doubles(offer: Offer, sid: Bytes): Promise<Float64Array>;
}

/** Errors after which the same call is tried again. */
const REPEAT: ReadonlySet<ErrorName> = new Set([
  'UNREACHABLE',
  'OVERLOADED',
  'STORAGE_FAILED',
  'SHUTTING_DOWN',
]);
/** Errors that say that the round, or the session, is over: the update tells what became of it. */
const ASK: ReadonlySet<ErrorName> = new Set(['DEADLINE', 'SESSION_OVER', 'UNEXPECTED_MESSAGE']);
/** Errors after which the next session is worth trying. */
const NEXT: ReadonlySet<ErrorName> = new Set([
  'BAD_PUBLIC_KEY',
  'DUPLICATE_KEY',
  'ROSTER_TOO_SMALL',
  'ROSTER_TOO_LARGE',
  'BAD_SHARE_CIPHERTEXT',
  'SHARE_CONFUSION',
  'U2_TOO_SMALL',
  'U3_TOO_SMALL',
  'TOO_MANY_DROPOUTS',
  'NO_QUORUM',
  'DEADLINE',
  'SESSION_OVER',
  'RECONSTRUCTION_FAILED',
  'TOO_FEW_ANSWERS',
  'DISPUTED',
  'BAD_CLOCK',
  'UNKNOWN_SESSION',
  'CANCELLED',
]);
/** Longest pause between two attempts of a call. */
const MOST_PAUSE_MS = 5000;
/** Longest that one question for a session may take. */
const OFFER_WAIT_MS = 25_000;
/** Longest time that `setTimeout` counts; a longer one would be over at once. */
const MOST_TIMER_MS = 2 ** 31 - 1;
/** A revocation list is smaller (PROTOCOL §2.1). */
const MOST_LIST_BYTES = 4 << 20;
/** Defects of the aggregator that are met in a row before the client ends the session. */
const MOST_DEFECTS = 3;
/** A program in the background of a phone gets about 30 s. */
const VISIT_MS = 25_000;
/** Longest that a question may be held. */
const MOST_HELD_MS = 30_000;
/** Clients of one round that come back at its end do not all come in the same second. */
const SPREAD_PART = 0.05;
/** Part of the next round's time that may have passed when a client comes back. */
const NEXT_ROUND_PART = 0.9;
/** When to come back after an answer that came too late. */
const LATE_MS = 1000;
/** How long after the session's end a client that has answered waits for the outcome. */
const OUTCOME_SECONDS = 600;
/** Part of MaskedInputCollection after which a vector with noise is late (R3.5-5). */
const DUE_PART = 0.7;

/** A client of one task of one aggregator. Use it for one contribution at a time. */
export class Client {
  readonly #settings: ClientSettings;
  readonly #calls: AggregatorCalls;
  readonly #policy: ClientPolicy;
  readonly #limits: PrivacyLimits;
  readonly #verified = new VerifiedCredentials();
  #state: ClientState | null = null;
  #busy = false;
  /** Until when failed calls are tried again; null for as long as the session lasts. */
  #visitEnds: number | null = null;
  #sent = false;
  #late = false;

  /** @throws TypeError A limit of `policy` or `limits` has another name or kind. */
  constructor(settings: ClientSettings) {
    this.#settings = settings;
    this.#calls = new AggregatorCalls(settings.transport);
    this.#policy = limitsOver(DEFAULT_POLICY, settings.policy);
    this.#limits = limitsOver(DEFAULT_LIMITS, settings.limits);
  }

  /**
   * Takes part in sessions of the task until one releases a sum, or `attempts` have ended.
   *
   * A session that an earlier process has left open is continued first: if an input was
   * bound in it, that one is sent and `input` is not looked at. One that has ended, and was
   * not reported, is reported.
   *
   * @throws SecAggError The aggregator broke the protocol, its offer does not fit this
   *   client, or no session opened in time.
   */
  async contribute(input: Input<InputVector>): Promise<Contribution> {
    if (this.#busy) throw new TypeError('this client is working on another contribution');
    this.#busy = true;
    try {
      this.#state ??= await this.#settings.store.load();
      const attempts = this.#settings.attempts ?? 3;
      for (let attempt = 1; ; attempt++) {
        const contribution = await this.#participate(input);
        await this.#commit({ reported: true });
        const { error } = contribution;
        if (error === null || !NEXT.has(error) || attempt >= attempts) return contribution;
      }
    } finally {
      this.#busy = false;
    }
  }

  /**
   * Asks once what is new, answers, and says when to come back; the process may end then.
   *
   * For programs that a scheduler wakes for some seconds. What leaves was committed before, so
   * that a visit that was cut off is done again by the next one.
   *
   * @throws SecAggError UNREACHABLE and the like when the visit was cut off: come again. Any
   *   other error as {@link contribute}.
   */
  async visit(input: Input<InputVector>, options: VisitOptions = {}): Promise<Visit> {
    if (this.#busy) throw new TypeError('this client is working on another contribution');
    this.#busy = true;
    const heldMs = Math.min(Math.max(options.heldMs ?? 0, 0), MOST_HELD_MS);
    this.#visitEnds = this.#now + heldMs + (options.visitMs ?? VISIT_MS);
    this.#sent = this.#late = false;
    try {
      this.#state ??= await this.#settings.store.load();
      const visit = await this.#visit(input, heldMs);
      if (visit.contribution !== null) await this.#commit({ reported: true });
      return visit;
    } finally {
      this.#visitEnds = null;
      this.#busy = false;
    }
  }

  // State

  get #now(): number {
    return (this.#settings.clock ?? Date.now)();
  }

  get #seconds(): bigint {
    return BigInt(Math.floor(this.#now / 1000));
  }

  #sleep(ms: number): Promise<void> {
    const sleep = this.#settings.sleep ?? ((time) => new Promise((go) => setTimeout(go, time)));
    return sleep(ms);
  }

  async #commit(change: Partial<ClientState>): Promise<void> {
    const state = { ...this.#state!, ...change, generation: this.#state!.generation + 1 };
    await this.#settings.store.commit(state);
    this.#state = state;
  }

  #budget(key: string): Budget {
    const none = { block: '', kept: 0, returned: 0, rosters: 0, lastSession: 0n };
    return this.#state!.budgets[key] ?? none;
  }

  #withBudget(key: string, change: Partial<Budget>): Partial<ClientState> {
    const budgets = { ...this.#state!.budgets, [key]: { ...this.#budget(key), ...change } };
    return { budgets };
  }

  #options(signer: Signer | null): SessionOptions {
    return { signer, noise: this.#settings.noise ?? null, verified: this.#verified };
  }

  // Sessions

  async #participate(input: Input<InputVector>): Promise<Contribution> {
    const peer = await this.#meet();
    const open = await this.#resume(peer);
    if (open !== null) return this.#run(open.session, open.step, this.#source(input, null, null));
    const unreported = await this.#unreported();
    if (unreported !== null) return unreported;
    const bytes = await this.#awaitOffer(this.#lastSession(peer));
    const { session, step, source } = await this.#join(peer, input, bytes);
    return this.#run(session, step, source);
  }

  /** Resumes the open session; null where there is none with the aggregator that answers. */
  async #resume(peer: ProvenAggregator): Promise<{ session: Session; step: Step } | null> {
    const stored = this.#state!.session;
    if (stored === null || stored.state === 'left') return null;
    const offer = decodeOffer(stored.offer);
    const { taskId } = this.#settings;
    if (offer.taskId !== taskId && !(stored.state === 'ended' && this.#state!.reported)) {
      // Its vector would be this task's, and its outcome be told as this task's.
      throw new SecAggError(
        'BAD_SETTINGS',
        `the store has a session of task "${offer.taskId}" that is not over`,
        { nextStep: 'Continue that one first, or give each task a store of its own.' },
      );
    }
    if (stored.state === 'ended') return null;
    const other =
      offer.aggregator !== peer.aggregator || this.#state!.trustDomain !== peer.trustDomain;
    const enrolment = stored.credential === null ? null : await this.#enrolment();
    const resumed = Session.resume(stored, this.#options(enrolment?.signer ?? null));
    if (other) {
      await this.#meetAnother(resumed.session);
      return null;
    }
    await this.#checkAgain(resumed.session, stored, peer, enrolment);
    return resumed;
  }

  /** What became of a session where the process ended between its end and its report. */
  async #unreported(): Promise<Contribution | null> {
    const stored = this.#state!.session;
    if (stored?.state !== 'ended' || this.#state!.reported) return null;
    const { session } = Session.resume(stored, this.#options(null));
    return this.#conclude(session, endingOf(stored), null);
  }

  #lastSession(peer: ProvenAggregator): bigint {
    const key = budgetKey(peer.trustDomain, peer.aggregator, this.#settings.taskId);
    return this.#budget(key).lastSession;
  }

  // Visits

  async #visit(input: Input<InputVector>, heldMs: number): Promise<Visit> {
    const peer = await this.#settings.transport.meet();
    const open = await this.#resume(peer);
    if (open !== null) {
      const { session, step } = open;
      const source = this.#source(input, null, null);
      return this.#inVisit(session, () => this.#continue(session, step, source, heldMs));
    }
    const unreported = await this.#unreported();
    if (unreported !== null) return this.#over(unreported);
    const { taskId } = this.#settings;
    const answer = await this.#calls.getOffer(taskId, this.#lastSession(peer), heldMs);
    if (!(answer instanceof Uint8Array)) {
      const comeBackMs = answer.retryAfterMs;
      return { comeBackMs, sessionNumber: 0n, sent: false, contribution: null };
    }
    const { session, step } = await this.#join(peer, input, answer);
    return this.#inVisit(session, async () => {
      for (const message of step.send) await this.#send(session, message);
      return this.#untilLater(session, null);
    });
  }

  /** Ends the session on an error after which it cannot continue, and on no other. */
  async #inVisit(session: Session, work: () => Promise<Visit>): Promise<Visit> {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof SecAggError)) throw error;
      if (REPEAT.has(error.error) || error.error === 'STATE_LOCKED') throw error;
      if (!session.over) session.leave(error.code);
      await this.#commit({ session: session.record });
      if (session.state !== 'left' || !NEXT.has(error.error)) throw error;
      const outcome = { error: error.error, reason: error.message };
      return this.#over(this.#contribution(session, null, outcome));
    }
  }

  async #continue(session: Session, first: Step, source: Source, heldMs: number): Promise<Visit> {
    if (await this.#expired(session)) return this.#over(this.#abandoned(session, null));
    let step = first;
    let replaced: string | null = null;
    const answer = await this.#askForUpdate(session, heldMs);
    if ('kind' in answer) {
      const ends = answer.kind === KINDS.release || answer.kind === KINDS.abort;
      if (!ends && (await this.#expired(session))) {
        return this.#over(this.#abandoned(session, null));
      }
      step = await this.#take(session, answer);
    } else if (answer.closesInMs !== null) {
      return this.#untilLater(session, answer);
    }
    for (;;) {
      for (const message of step.send) {
        if (!session.over) await this.#send(session, message);
      }
      if (step.needsInput === null || session.over) break;
      ({ step, replaced } = await this.#bind(session, step.needsInput, source));
    }
    if (step.ended !== null) return this.#over(await this.#conclude(session, step.ended, replaced));
    if (session.over) return this.#over(this.#abandoned(session, replaced));
    return this.#untilLater(session, null);
  }

  #over(contribution: Contribution): Visit {
    const { sessionNumber } = contribution;
    return { comeBackMs: 0, sessionNumber, sent: this.#sent, contribution };
  }

  /** Until when this client may sleep: the open round's end, but never the next one's. */
  #untilLater(session: Session, wait: Wait | null): Visit {
    const { sessionNumber, parameters } = session.offer;
    const { deadlines } = parameters;
    const at = session.round - 1;
    const lasts = wait?.closesInMs ?? 1000 * deadlines[at]!;
    // No secret: when this client comes back is for the aggregator to see.
    let sleep = lasts * (1 + (SPREAD_PART * randomBytes(1)[0]!) / 256);
    const next = deadlines.slice(at + 1).find((seconds) => seconds > 0);
    if (next !== undefined) sleep = Math.min(sleep, NEXT_ROUND_PART * 1000 * next);
    const comeBackMs = this.#late ? LATE_MS : Math.max(sleep, wait?.retryAfterMs ?? 0);
    return { comeBackMs, sessionNumber, sent: this.#sent, contribution: null };
  }

  /** Whether a call that has failed is tried again after a pause. */
  #endsVisit(pauseMs: number): boolean {
    return this.#visitEnds !== null && this.#now + pauseMs > this.#visitEnds;
  }

  /** Waits until the aggregator is reached, and learns who it is. */
  async #meet(): Promise<ProvenAggregator> {
    const latest = this.#now + 1000 * (this.#settings.waitSeconds ?? 120);
    for (let pause = 200; ; pause = Math.min(2 * pause, MOST_PAUSE_MS)) {
      try {
        return await this.#settings.transport.meet();
      } catch (error) {
        if (!(error instanceof SecAggError) || error.error !== 'UNREACHABLE') throw error;
        if (this.#now + pause > latest) throw error;
      }
      await this.#sleep(pause);
    }
  }

  /** Another aggregator answers than that of the open session (R5.0-6). */
  async #meetAnother(session: Session): Promise<void> {
    if (session.inputBound && !session.expired(this.#seconds)) {
      throw new SecAggError('UNREACHABLE', 'another aggregator answers than that of the session', {
        rule: 'R5.0-6',
        nextStep: `Reach the aggregator ${session.offer.aggregator} again, or wait for the session's end.`,
      });
    }
    session.leave(ERROR_CODES.UNREACHABLE);
    await this.#commit({ session: session.record });
  }

  /** Leaves an open session that does not fit the settings of today any more. */
  async #checkAgain(
    session: Session,
    stored: SessionRecord,
    peer: ProvenAggregator,
    enrolment: Enrolment | null,
  ): Promise<void> {
    // One that has answered repeats what was said; one that is over says nothing.
    if (stored.answer !== null || session.expired(this.#seconds)) return;
    const enrolmentKey = enrolment?.enrolmentKey ?? null;
    const lists = listKey(peer.trustDomain, toHex(enrolmentKey ?? new Uint8Array()));
    try {
      checkStoredOffer(stored.offer, stored.revocations, {
        ...peer,
        enrolmentKey,
        seen: seenTrust(this.#state!.lists[lists]),
        policy: this.#policy,
        limits: this.#limits,
        noise: this.#settings.noise ?? null,
      });
    } catch (error) {
      if (error instanceof SecAggError) {
        session.leave(error.code);
        await this.#commit({ session: session.record });
      }
      throw error;
    }
  }

  async #enrolment(): Promise<Enrolment> {
    if (this.#settings.enrolment === undefined) {
      throw new SecAggError('BAD_SETTINGS', 'the session needs a credential', {
        nextStep: 'Give the client its enrolment.',
      });
    }
    return this.#settings.enrolment();
  }

  /** Checks an offer, and commits a session of it. */
  async #join(
    peer: ProvenAggregator,
    input: Input<InputVector>,
    bytes: Bytes,
  ): Promise<{ session: Session; step: Step; source: Source }> {
    const { taskId, transport } = this.#settings;
    const key = budgetKey(peer.trustDomain, peer.aggregator, taskId);
    const profile = decodeOffer(bytes).parameters.profile;
    const enrolment = profile === 1 ? null : await this.#enrolment();
    const lists = listKey(peer.trustDomain, toHex(enrolment?.enrolmentKey ?? new Uint8Array()));
    const offer = checkOffer(bytes, {
      ...peer,
      now: this.#seconds,
      lastSession: this.#budget(key).lastSession,
      enrolmentKey: enrolment?.enrolmentKey ?? null,
      seen: seenTrust(this.#state!.lists[lists]),
      policy: this.#policy,
      limits: this.#limits,
      noise: this.#settings.noise ?? null,
    });
    if (offer.taskId !== taskId) {
      throw new SecAggError('POLICY_VIOLATION', 'the offer is of another task than was asked for');
    }
    const noise = readSessionNoise(offer, null);
    const block = toHex(
      offer.parameters.noiseBlock.length === 0
        ? new Uint8Array()
        : sha256(offer.parameters.noiseBlock),
    );
    this.#checkBudget(this.#budget(key), noise, block, offer);
    const { sid } = openingContext(offer);
    const revocations = await this.#fetchList(offer, sid, lists);
    if (enrolment !== null) this.#checkOwnCredential(offer, enrolment);
    const payload = await this.#fetchPayload(offer, sid);
    const source = this.#source(input, payload, offer);
    // No zeros replace a vector of an exact task: one that cannot be used keeps this client away.
    if (noise === null) await source.integers(offer, sid);
    const { session, step } = await Session.begin(
      bytes,
      {
        identity: transport.identity,
        credential: enrolment?.credential.credential ?? null,
        revocations,
        seed: randomBytes(32),
      },
      this.#options(enrolment?.signer ?? null),
    );
    await this.#commit({
      ...this.#withBudget(key, { lastSession: offer.sessionNumber, block }),
      session: session.record,
      reported: false,
      trustDomain: peer.trustDomain,
    });
    return { session, step, source };
  }

  /** Repeats a call before a session as long as the aggregator may come back in time. */
  async #withRetries<T>(call: () => Promise<T>): Promise<T> {
    const latest = this.#now + 1000 * (this.#settings.waitSeconds ?? 120);
    for (let pause = 200; ; pause = Math.min(2 * pause, MOST_PAUSE_MS)) {
      try {
        return await call();
      } catch (error) {
        if (!(error instanceof SecAggError) || !REPEAT.has(error.error)) throw error;
        pause = error.retryAfterMs ?? pause;
        if (this.#now + pause > latest || this.#endsVisit(pause)) throw error;
      }
      await this.#sleep(pause);
    }
  }

  async #awaitOffer(after: bigint): Promise<Bytes> {
    const latest = this.#now + 1000 * (this.#settings.waitSeconds ?? 120);
    for (let pause = 200; ; pause = Math.min(2 * pause, MOST_PAUSE_MS)) {
      const left = Math.max(0, latest - this.#now);
      try {
        const answer = await this.#calls.getOffer(
          this.#settings.taskId,
          after,
          Math.floor(Math.min(left, OFFER_WAIT_MS)),
        );
        if (answer instanceof Uint8Array) return answer;
        pause = answer.retryAfterMs;
      } catch (error) {
        if (!(error instanceof SecAggError) || !REPEAT.has(error.error)) throw error;
        pause = error.retryAfterMs ?? pause;
        if (this.#now + pause > latest) throw error;
      }
      if (this.#now + pause > latest) {
        throw new SecAggError('DEADLINE', 'no session of the task opened in time', {
          nextStep: 'Start the client again later, or let it wait longer.',
        });
      }
      await this.#sleep(pause);
    }
  }

  #checkBudget(budget: Budget, noise: SessionNoise | null, block: string, offer: Offer): void {
    const used = budget.kept + budget.returned > 0 || budget.rosters > 0;
    if (used && budget.block !== block) {
      throw new SecAggError('POLICY_VIOLATION', 'the task has other noise than before', {
        rule: 'R5.0-4',
        nextStep: 'Ask the operator to offer it under another name.',
      });
    }
    if (noise === null) return;
    const sessions = countedSessions(noise.block);
    if (budget.kept >= sessions) {
      throw new SecAggError('BUDGET_SPENT', `all ${sessions} sessions of this client are spent`, {
        rule: 'R5.6-3',
      });
    }
    if (offer.parameters.degree > 0 && budget.rosters >= ROSTERS_FOR_EACH * sessions) {
      throw new SecAggError('POLICY_VIOLATION', 'too many rosters of this task were accepted', {
        rule: 'R11.3-1',
      });
    }
  }

  /** Fetches and checks the revocation list, and remembers its number only then (R5.0-5). */
  async #fetchList(offer: Offer, sid: Bytes, key: string): Promise<Bytes | null> {
    const { trust } = offer.parameters;
    if (trust === null) return null;
    let bytes: Bytes | null = null;
    if (trust.revocationNumber !== 0) {
      try {
        const { revocationHash } = trust;
        bytes = await this.#withRetries(() =>
          this.#calls.fetch(sid, BLOBS.revocations, MOST_LIST_BYTES, revocationHash),
        );
      } catch (error) {
        if (!(error instanceof SecAggError) || error.error !== 'PAYLOAD_MISMATCH') throw error;
      }
    }
    const list = checkRevocationList(trust, bytes);
    checkListAge(list, this.#seconds, this.#policy);
    const seen = encodeTrust(trust);
    const known = this.#state!.lists[key];
    if (known === undefined || !equal(known, seen)) {
      await this.#commit({ lists: { ...this.#state!.lists, [key]: seen } });
    }
    return bytes;
  }

  #checkOwnCredential(offer: Offer, { signer, credential }: Enrolment): void {
    const fits =
      credential.name === this.#settings.transport.identity &&
      credential.trustDomain === offer.parameters.trust!.trustDomain &&
      equal(credential.credential.key, signer.publicKey);
    if (!fits) {
      throw new SecAggError('BAD_CREDENTIAL', 'the credential is of another client or key', {
        rule: 'R10.2-1',
        nextStep: 'Have the identity of this client enrolled.',
      });
    }
    const { trust } = offer.parameters;
    const own = credential.credential;
    checkCredential(trust!, credential.name, own, offer.sessionEnd, new Set(), this.#verified);
  }

  async #fetchPayload(offer: Offer, sid: Bytes): Promise<Bytes | null> {
    if (offer.payloadHash.length === 0) return null;
    const most = this.#settings.maxPayloadBytes ?? 1 << 30;
    const payload = await this.#withRetries(() =>
      this.#calls.fetch(sid, BLOBS.payload, most, offer.payloadHash),
    );
    checkPayload(offer.payloadHash, payload);
    return payload;
  }

  /** Where the vector of a session comes from; each of its functions computes once. */
  #source(input: Input<InputVector>, payload: Bytes | null, offer: Offer | null): Source {
    let vector: Promise<InputVector> | null = null;
    const fetched = offer !== null;
    const read = (from: Offer, sid: Bytes): Promise<InputVector> => {
      vector ??= (async () => {
        if (typeof input !== 'function') return input;
        return input(fetched ? payload : await this.#fetchPayload(from, sid));
      })();
      return vector;
    };
    return {
      integers: async (from, sid) => {
        const { modulus, dim } = from.parameters;
        return encodeIntegers(await read(from, sid), modulus, dim);
      },
      doubles: async (from, sid) => {
        const found = await read(from, sid);
        if (!(found instanceof Float64Array)) throw new TypeError('the vector is no Float64Array');
        return found;
      },
    };
  }

  // One session

  async #run(session: Session, first: Step, source: Source): Promise<Contribution> {
    let step = first;
    let replaced: string | null = null;
    try {
      for (;;) {
        for (const message of step.send) {
          if (session.over) break;
          await this.#send(session, message);
        }
        if (step.needsInput !== null && !session.over) {
          const bound = await this.#bind(session, step.needsInput, source);
          step = bound.step;
          replaced = bound.replaced;
          continue;
        }
        if (step.ended !== null) return await this.#conclude(session, step.ended, replaced);
        if (session.over) return this.#abandoned(session, replaced);
        const update = await this.#nextUpdate(session);
        if (update === null) return this.#abandoned(session, replaced);
        step = await this.#take(session, update);
      }
    } catch (error) {
      // Whatever ended the session here, its record without secrets is the newest one.
      if (error instanceof SecAggError && error.error !== 'STATE_LOCKED') {
        if (!session.over) session.leave(error.code);
        await this.#commit({ session: session.record });
        if (session.state === 'left' && NEXT.has(error.error)) {
          const outcome = { error: error.error, reason: error.message };
          return this.#contribution(session, replaced, outcome);
        }
      }
      throw error;
    }
  }

  #keyOf(session: Session): string {
    const { aggregator, taskId } = session.offer;
    return budgetKey(this.#state!.trustDomain, aggregator, taskId);
  }

  async #take(session: Session, update: Update): Promise<Step> {
    const before = session.state;
    const charged = session.record.charge;
    const step = await session.receive(update.kind, update.message);
    if (session.state === before && !session.over) {
      const what = 'the aggregator repeats an update, where a later one was asked for';
      throw new SecAggError('UNEXPECTED_MESSAGE', what, { rule: 'R10-1' });
    }
    const key = this.#keyOf(session);
    const budget = this.#budget(key);
    let change: Partial<ClientState> = {};
    if (
      before === 'advertised' &&
      session.state === 'shared' &&
      session.offer.parameters.degree > 0
    ) {
      change = this.#withBudget(key, { rosters: budget.rosters + 1 });
    }
    if (charged === 'kept' && session.record.charge === 'returned') {
      // Of a task that counts n participations at most n charges come back.
      const noise = readSessionNoise(session.offer, null);
      if (noise === null || budget.returned < noise.block.participations) {
        change = this.#withBudget(key, { kept: budget.kept - 1, returned: budget.returned + 1 });
      }
    }
    await this.#commit({ ...change, session: session.record });
    return step;
  }

  /** Waits for what opens the next round; null where the session's end has passed. */
  async #nextUpdate(session: Session): Promise<Update | null> {
    for (;;) {
      const answer = await this.#repeat(session, () => this.#askForUpdate(session));
      if (answer === null) return null;
      if ('kind' in answer) {
        const ends = answer.kind === KINDS.release || answer.kind === KINDS.abort;
        // The call may have been held until the session's end had passed (R5-7).
        return ends || !(await this.#expired(session)) ? answer : null;
      }
      await this.#pause(session, answer);
    }
  }

  async #askForUpdate(session: Session, heldMs = 0): Promise<Update | Wait> {
    try {
      return await this.#calls.getUpdate(session.sid, session.round, heldMs);
    } catch (error) {
      const over = error instanceof SecAggError && error.error === 'SESSION_OVER';
      // With an input bound, only an update says its fate, and with it what it costs.
      if (over && session.inputBound) return { retryAfterMs: MOST_PAUSE_MS, closesInMs: null };
      throw error;
    }
  }

  async #pause(session: Session, wait: Wait): Promise<void> {
    const end = 1000 * Number(session.offer.sessionEnd) - this.#now;
    await this.#sleep(
      Math.max(
        1,
        session.record.answer === null ? Math.min(wait.retryAfterMs, end) : wait.retryAfterMs,
      ),
    );
  }

  /**
   * Makes a call until it succeeds; null once the session is over by time or by the
   * aggregator's word.
   */
  async #repeat<T>(session: Session, call: () => Promise<T>): Promise<T | null> {
    let defects = 0;
    for (let pause = 200; ; pause = Math.min(2 * pause, MOST_PAUSE_MS)) {
      if (await this.#expired(session)) return null;
      try {
        return await call();
      } catch (error) {
        if (!(error instanceof SecAggError)) throw error;
        if (error.error === 'UNKNOWN_SESSION') {
          session.leave(error.code);
          await this.#commit({ session: session.record });
          return null;
        }
        const defect = error.error === 'INTERNAL' && ++defects < MOST_DEFECTS;
        if (!defect && !REPEAT.has(error.error)) throw error;
        pause = Math.max(pause, error.retryAfterMs ?? 0);
        if (this.#endsVisit(pause)) throw error;
      }
      await this.#sleep(pause);
    }
  }

  async #expired(session: Session): Promise<boolean> {
    const late = this.#seconds >= session.offer.sessionEnd + BigInt(OUTCOME_SECONDS);
    if (session.over) return true;
    if (!session.expired(this.#seconds) && !late) return false;
    session.leave(ERROR_CODES.DEADLINE);
    await this.#commit({ session: session.record });
    return true;
  }

  async #send(session: Session, { kind, message }: Outgoing): Promise<void> {
    try {
      if (kind === KINDS.upload) {
        await this.#upload(session, message);
        this.#sent = true;
        return;
      }
      const sent = await this.#repeat(session, async () => {
        await this.#calls.send(session.sid, kind, message);
        return true;
      });
      if (kind === KINDS.complaint && sent === true) {
        session.complaintAcknowledged(new Reader(message.slice(2), 'a complaint').u32());
        await this.#commit({ session: session.record });
      }
      this.#sent = true;
    } catch (error) {
      if (!(error instanceof SecAggError) || !ASK.has(error.error)) throw error;
      this.#late = true;
    }
  }

  async #upload(session: Session, packed: Bytes): Promise<void> {
    const digest = sha256(packed);
    const { view } = session;
    let status = await this.#repeat(session, () => this.#calls.getUploadStatus(session.sid, view));
    let corrupt = 0;
    while (status !== null && !status.complete) {
      const offset = status.nextOffset;
      if (offset > packed.length) {
        throw new SecAggError('BAD_ENCODING', 'the aggregator wants bytes beyond the upload');
      }
      try {
        status = await this.#repeat(session, () =>
          this.#calls.uploadChunk(session.sid, view, packed, digest, offset),
        );
      } catch (error) {
        if (!(error instanceof SecAggError)) throw error;
        // Refused by its view with an input bound: wait for what is said next (R5.3-14).
        if (error.error === 'VIEW_DIFFERS') return;
        if (error.error !== 'UPLOAD_CORRUPT' || ++corrupt > 16) throw error;
        status = await this.#repeat(session, () => this.#calls.getUploadStatus(session.sid, view));
      }
    }
  }

  /** Encodes and binds the input, and charges for it, before its first byte leaves. */
  async #bind(
    session: Session,
    request: InputRequest,
    source: Source,
  ): Promise<{ step: Step; replaced: string | null }> {
    // With another view nothing is bound and nothing is charged (R5.3-14).
    try {
      await this.#repeat(session, () => this.#calls.getUploadStatus(session.sid, request.view));
    } catch (error) {
      if (!(error instanceof SecAggError) || !ASK.has(error.error)) throw error;
      const update = await this.#nextUpdate(session);
      if (update !== null) return { step: await this.#take(session, update), replaced: null };
    }
    if (session.over) return { step: NOTHING, replaced: null };
    let replaced: string | null = null;
    let residues: Residues;
    if (request.noise === null) {
      residues = await source.integers(session.offer, session.sid);
    } else {
      const encoder = this.#settings.noise!;
      try {
        const vector = await whenDue(
          source.doubles(session.offer, session.sid),
          DUE_PART * 1000 * session.offer.parameters.deadlines[3]!,
        );
        residues = await encoder.encode(request, vector);
      } catch (error) {
        replaced = error instanceof Error ? error.message : 'the vector could not be made';
        residues = await encoder.encode(request, null);
      }
    }
    if (await this.#expired(session)) return { step: NOTHING, replaced };
    const step = await session.bind(residues);
    const key = this.#keyOf(session);
    await this.#commit({
      ...this.#withBudget(key, { kept: this.#budget(key).kept + 1 }),
      session: session.record,
    });
    return { step, replaced };
  }

  // The end

  async #conclude(
    session: Session,
    ending: Ending,
    replaced: string | null,
  ): Promise<Contribution> {
    if (ending.kind === 'abort') {
      return this.#contribution(session, replaced, { error: ending.code, reason: ending.reason });
    }
    const { modulus, dim, suite } = session.offer.parameters;
    if (ending.size !== BigInt(packedSize(modulus, dim))) {
      throw new SecAggError('BAD_ENCODING', 'the released sum has another size than its task');
    }
    const packed = await this.#fetchSum(session, Number(ending.size), ending.sumHash);
    const residues = unpack(packed, modulus, dim);
    const noise = readSessionNoise(session.offer, null);
    const estimate =
      noise === null
        ? { values: centre(residues, modulus), fitted: null }
        : await this.#settings.noise!.decode(residues, noise, session.sid, suite, ending.survivors);
    return this.#contribution(session, replaced, {
      released: true,
      sum: estimate.values,
      fitted: estimate.fitted,
      survivors: ending.survivors,
      error: null,
    });
  }

  async #fetchSum(session: Session, size: number, hash: Bytes): Promise<Bytes> {
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#calls.fetch(session.sid, BLOBS.sum, size, hash);
      } catch (error) {
        const again = error instanceof SecAggError && REPEAT.has(error.error) && attempt < 10;
        if (!again) throw error;
        const pause = error.retryAfterMs ?? Math.min(200 * 2 ** attempt, MOST_PAUSE_MS);
        if (this.#endsVisit(pause)) throw error;
        await this.#sleep(pause);
      }
    }
  }

  #abandoned(session: Session, replaced: string | null): Contribution {
    const late = session.record.violation === ERROR_CODES.DEADLINE;
    return this.#contribution(session, replaced, {
      error: late ? 'DEADLINE' : 'UNKNOWN_SESSION',
      reason: late ? "the session's end has passed" : 'the aggregator does not know the session',
    });
  }

  #contribution(
    session: Session,
    replaced: string | null,
    outcome: Partial<Contribution>,
  ): Contribution {
    const record = session.record;
    return {
      sessionNumber: session.offer.sessionNumber,
      released: false,
      sum: null,
      fitted: null,
      survivors: 0,
      error: 'INTERNAL',
      reason: '',
      replaced,
      charge: record.charge,
      receipt: writeReceipt(record, session.rosterTop),
      ...outcome,
    };
  }
}

const NOTHING: Step = { send: [], needsInput: null, ended: null };

/** Waits for a vector until it is due; it is useless afterwards, whatever becomes of it. */
async function whenDue<T>(vector: Promise<T>, ms: number): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => {
        reject(new Error('the vector was not ready when it was due'));
      },
      Math.min(ms, MOST_TIMER_MS),
    );
  });
  try {
    return await Promise.race([vector, late]);
  } finally {
    clearTimeout(timer);
  }
}

function endingOf({ ending }: SessionRecord): Ending {
  const { kind, message } = ending!;
  return kind === KINDS.release ? decodeRelease(message) : decodeAbort(message);
}

function seenTrust(bytes: Bytes | undefined): Trust | null {
  return bytes === undefined ? null : readTrust(new Reader(bytes, 'a trust'));
}
