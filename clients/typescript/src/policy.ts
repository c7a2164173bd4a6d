/** What a client accepts of an offer: the rules of PROTOCOL §5.0 and its own limits. */

import { equal, toHex, type Bytes } from './bytes.js';
import { checkRevocationList, type RevocationList } from './enrolment.js';
import { refuse, SecAggError } from './errors.js';
import { sha256 } from './hash.js';
import { countedSessions, readSessionNoise, type NoiseBlock } from './noise-block.js';
import {
  checkOfferRules,
  decodeOffer,
  PROFILES,
  type Offer,
  type ProfileName,
  type Trust,
} from './parameters.js';
import { compareRational, ofDecimal } from './rational.js';
import { checkClaim } from './rule.js';
import type { NoiseTables } from './session.js';

/** Demands of a client on the cohort and the graph of a session (R5.0-4). */
export interface ClientPolicy {
  /** Threat models that are accepted. */
  readonly profiles: readonly ProfileName[];
  /** Suites by number: 1 is AES-256-CTR, 2 is AES-128-CTR. */
  readonly suites: readonly number[];
  /** Graphs that are accepted. */
  readonly graphs: readonly ('complete' | 'ring')[];
  /** On a ring, the session must be safe but for a chance of one in two to this. */
  readonly minGraphBits: number;
  readonly minClients: number;
  readonly maxClients: number;
  /** Fewest inputs in a released sum. */
  readonly minSurvivors: number;
  /** Most clients that may be lost after they shared; null for no limit of its own. */
  readonly maxDropouts: number | null;
  /** Colluders that the session must tolerate. */
  readonly minColluders: number;
  /** Demand a threshold above half of the cohort on the complete graph. */
  readonly requireMajority: boolean;
  readonly maxDimension: number;
  readonly maxModulusBits: number;
  /** Oldest revocation list, in days; older ones and none at all are refused. Null for no limit. */
  readonly maxRevocationDays: number | null;
}

/** Limits of a client on the privacy that a whole task may cost. */
export interface PrivacyLimits {
  /** Refuse tasks that release exact sums. */
  readonly requireNoise: boolean;
  /** Largest epsilon of a whole task, computed by this client. */
  readonly maxEpsilon: number;
  /** Largest delta that goes with it. */
  readonly maxDelta: number;
  /**
   * Part of every roster that the noise must take for colluders. Null for 0.1 where the
   * aggregator may lie, since it can invent members, and for 0 elsewhere.
   */
  readonly minColluderFraction: number | null;
  /**
   * SHA-256, in hexadecimal, of noise blocks that `secagg plan --approve` has checked: their
   * epsilon is believed, and not computed.
   */
  readonly approvedBlocks: readonly string[];
}

/** Policy of a client that trusts its server to follow the protocol. */
export const DEFAULT_POLICY: ClientPolicy = {
  profiles: ['honest-curious-server'],
  suites: [1, 2],
  graphs: ['complete'],
  minGraphBits: 40,
  minClients: 3,
  maxClients: 10000,
  minSurvivors: 3,
  maxDropouts: null,
  minColluders: 0,
  requireMajority: true,
  maxDimension: 1 << 26,
  maxModulusBits: 62,
  maxRevocationDays: null,
};

/** Limits of a client that accepts tasks with noise only. */
export const DEFAULT_LIMITS: PrivacyLimits = {
  requireNoise: true,
  maxEpsilon: 4,
  maxDelta: 1e-6,
  minColluderFraction: null,
  approvedBlocks: [],
};

/**
 * The limits that an owner gives, over the defaults; one that is undefined is left out.
 *
 * @throws TypeError A limit has another name or kind, and would be compared with nothing.
 */
export function limitsOver<T extends object>(defaults: T, given: Partial<T> = {}): T {
  const settled = { ...defaults } as Record<string, unknown>;
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined) continue;
    if (!Object.hasOwn(defaults, name)) throw new TypeError(`there is no limit ${name}`);
    const usual = settled[name];
    const fits =
      typeof usual === 'boolean'
        ? typeof value === 'boolean'
        : Array.isArray(usual)
          ? Array.isArray(value)
          : (usual === null && value === null) ||
            (typeof value === 'number' && Number.isFinite(value) && value >= 0);
    if (!fits) throw new TypeError(`the limit ${name} cannot be ${String(value)}`);
    settled[name] = value;
  }
  return settled as T;
}

/** What an offer is checked against. */
export interface OfferContext {
  /** Name that the connection has proven (R5.0-1). */
  readonly aggregator: string;
  /** Trust domain of the connection, which is the client's own. */
  readonly trustDomain: string;
  /** TLS of the connection may end in a proxy (R10.3-4). */
  readonly proxied?: boolean;
  /** Seconds since 1970, by the client's clock. */
  readonly now: bigint;
  /** Highest session number of this aggregator and task that the client took part in; 0 for none. */
  readonly lastSession: bigint;
  /** Pinned enrolment key; null where the client has none. */
  readonly enrolmentKey: Bytes | null;
  /** Newest revocation list that the client has seen under this key and trust domain. */
  readonly seen: Trust | null;
  readonly policy: ClientPolicy;
  readonly limits: PrivacyLimits;
  /** What knows the samplers; null refuses tasks with noise. */
  readonly noise: NoiseTables | null;
}

/** Rosters that a client accepts for each session of its budget (R11.3-1). */
export const ROSTERS_FOR_EACH = 10;
/** Seconds that a session may take beyond its deadlines (R5.0-2). */
const SLACK = 3600n;

/**
 * Checks an offer before any key is made: §3.2, then R5.0-1 to R5.0-4.
 *
 * The revocation list comes after it (R2.1-0), see {@link checkListAge}.
 */
export function checkOffer(bytes: Uint8Array, context: OfferContext): Offer {
  return checkBy(bytes, context, (offer) => {
    checkSetup(offer, context);
  });
}

/**
 * Checks the offer of an open session again: settings may have become stricter since.
 *
 * The number is the session's own, and its end is checked before every call (R5-7). The age of
 * its list is that of the earliest instant at which it can have been joined (R5.0-2): a list
 * that grows old in a session does not end it by a restart alone.
 */
export function checkStoredOffer(
  bytes: Uint8Array,
  list: Bytes | null,
  context: Omit<OfferContext, 'now' | 'lastSession'>,
): Offer {
  return checkBy(bytes, context, (offer) => {
    checkPeer(offer, context);
    const { trust } = offer.parameters;
    if (trust === null) return;
    checkTrust(trust, context.enrolmentKey, context.seen);
    const joined = offer.sessionEnd - longest(offer);
    checkListAge(checkRevocationList(trust, list), joined, context.policy);
  });
}

/** Seconds before its end at which a session may be joined at the earliest (R5.0-2). */
function longest({ parameters: { deadlines } }: Offer): bigint {
  return (
    deadlines.reduce((sum, seconds) => sum + BigInt(seconds), 0n) + BigInt(deadlines[3]!) + SLACK
  );
}

function checkBy(
  bytes: Uint8Array,
  context: Omit<OfferContext, 'now' | 'lastSession'>,
  checkOpening: (offer: Offer) => void,
): Offer {
  const offer = decodeOffer(bytes);
  checkOfferRules(offer);
  const { noise } = context;
  const session = readSessionNoise(offer, noise === null ? null : (m) => noise.encodedLength(m));
  checkOpening(offer);
  checkPolicy(offer, context.policy);
  checkLimits(offer, session?.block ?? null, context);
  // Last, since tables of samplers take the longest.
  if (session !== null) noise!.check(session);
  return offer;
}

/** Checks R5.0-1 to R5.0-3 of a decoded offer. */
export function checkSetup(
  offer: Offer,
  context: Omit<OfferContext, 'policy' | 'limits' | 'noise'>,
): void {
  const p = offer.parameters;
  checkPeer(offer, context);
  if (offer.sessionNumber <= context.lastSession) {
    refuse('REPLAYED_SESSION', 'R5.0-2', `session ${offer.sessionNumber} was offered before`);
  }
  if (offer.sessionEnd <= context.now || offer.sessionEnd > context.now + longest(offer)) {
    refuse('BAD_CLOCK', 'R5.0-2', 'the session ends in the past or too far ahead');
  }
  if (p.trust !== null) checkTrust(p.trust, context.enrolmentKey, context.seen);
}

function checkPeer(
  offer: Offer,
  context: Pick<OfferContext, 'aggregator' | 'trustDomain' | 'proxied'>,
): void {
  const { trust } = offer.parameters;
  if (offer.aggregator !== context.aggregator) {
    refuse(
      'UNAUTHENTICATED',
      'R5.0-1',
      'the offer is of another aggregator than the one connected',
    );
  }
  if (trust !== null && trust.trustDomain !== context.trustDomain) {
    refuse('UNAUTHENTICATED', 'R5.0-1', 'the offer is of another trust domain');
  }
  if (context.proxied === true && trust === null) {
    throw new SecAggError(
      'POLICY_VIOLATION',
      'a session of profile 1 over HTTPS, where TLS may end in a proxy that reads and changes what passes',
      {
        rule: 'R10.3-4',
        nextStep:
          'Use a profile with signatures, or say direct: true if TLS ends in the aggregator.',
      },
    );
  }
}

function checkTrust(trust: Trust, pinned: Bytes | null, seen: Trust | null): void {
  if (pinned === null || !equal(pinned, trust.enrolmentKey)) {
    refuse('POLICY_VIOLATION', 'R5.0-3', 'the offer goes by another enrolment key');
  }
  if (seen === null) return;
  const older = trust.revocationNumber < seen.revocationNumber;
  const other =
    trust.revocationNumber === seen.revocationNumber &&
    !equal(trust.revocationHash, seen.revocationHash);
  if (older || other) {
    refuse(
      'POLICY_VIOLATION',
      'R5.0-3',
      `the offer names list ${trust.revocationNumber}, and this client has seen list ${seen.revocationNumber}`,
    );
  }
}

function checkPolicy(offer: Offer, policy: ClientPolicy): void {
  const p = offer.parameters;
  const demand = (holds: boolean, what: string): void => {
    if (!holds) {
      throw new SecAggError('POLICY_VIOLATION', `this client does not accept ${what}`, {
        rule: 'R5.0-4',
        nextStep: "Change the client's policy, or ask the operator to change the task.",
      });
    }
  };
  demand(
    policy.profiles.some((profile) => PROFILES[profile] === p.profile),
    `the profile ${p.profile}`,
  );
  demand(policy.suites.includes(p.suite), `the suite ${p.suite}`);
  demand(policy.graphs.includes(p.degree === 0 ? 'complete' : 'ring'), 'this graph');
  demand(
    p.degree === 0 || p.graphBits >= policy.minGraphBits,
    `a ring that is safe to ${p.graphBits} bits`,
  );
  demand(p.minClients >= policy.minClients, `cohorts of ${p.minClients}`);
  demand(p.maxClients <= policy.maxClients, `cohorts of ${p.maxClients}`);
  demand(p.minSurvivors >= policy.minSurvivors, `sums of ${p.minSurvivors}`);
  demand(
    policy.maxDropouts === null || p.maxDropouts <= policy.maxDropouts,
    `${p.maxDropouts} dropouts`,
  );
  demand(p.colluders >= policy.minColluders, `a session that tolerates ${p.colluders} colluders`);
  demand(
    !policy.requireMajority || p.degree !== 0 || 2 * p.threshold > p.maxClients,
    'a threshold of half of the cohort or less',
  );
  demand(p.dim <= policy.maxDimension, `vectors of ${p.dim} entries`);
  demand(p.modulus <= 1n << BigInt(policy.maxModulusBits), 'a modulus of that many bits');
}

function checkLimits(
  offer: Offer,
  block: NoiseBlock | null,
  context: Pick<OfferContext, 'limits' | 'noise'>,
): void {
  const { limits } = context;
  const fail = (what: string): never => refuse('POLICY_VIOLATION', 'R5.0-4', what);
  if (block === null) {
    if (limits.requireNoise) fail('the task releases exact sums, and this client demands noise');
    return;
  }
  if (context.noise === null) fail('this client was made without noise');
  if (!(block.epsilon <= limits.maxEpsilon)) {
    fail(
      `the task costs epsilon ${block.epsilon} over ${countedSessions(block)} sessions, and this client accepts ${limits.maxEpsilon}`,
    );
  }
  // On a ring every roster that is accepted is one more chance that it is unsafe (§11.3).
  const { degree, graphBits } = offer.parameters;
  const rosters = degree > 0 ? ROSTERS_FOR_EACH * countedSessions(block) : 0;
  const delta = block.delta + rosters * 2 ** -graphBits;
  if (!(delta <= limits.maxDelta)) {
    fail(`the task costs delta ${delta}, and this client accepts ${limits.maxDelta}`);
  }
  const least = limits.minColluderFraction ?? (offer.parameters.trust === null ? 0 : 0.1);
  if (compareRational(block.noise.colluderFraction, ofDecimal(least)) < 0) {
    fail('the noise takes a smaller part of the roster for colluders than this client demands');
  }
  const hash = toHex(sha256(offer.parameters.noiseBlock));
  if (!limits.approvedBlocks.includes(hash)) checkClaim(block, offer.parameters.dim);
}

/** Checks the age of a revocation list against the client's policy (R5.0-4). */
export function checkListAge(list: RevocationList | null, now: bigint, policy: ClientPolicy): void {
  if (policy.maxRevocationDays === null) return;
  const oldest = now - BigInt(Math.floor(policy.maxRevocationDays * 86400));
  if (list === null || list.madeAt < oldest) {
    refuse(
      'POLICY_VIOLATION',
      'R5.0-4',
      `the revocation list is older than ${policy.maxRevocationDays} days`,
    );
  }
}

/** Compares a payload with the hash in the offer, before anything is computed from it. */
export function checkPayload(payloadHash: Uint8Array, payload: Uint8Array): void {
  if (!equal(sha256(payload), payloadHash)) {
    refuse('PAYLOAD_MISMATCH', '§5.0', 'the payload is not the one that was offered');
  }
}
