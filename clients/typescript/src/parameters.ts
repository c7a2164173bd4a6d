/** Offers and their parameters: the encoding and the rules of PROTOCOL §3.2. */

import {
  badEncoding,
  blob,
  concat,
  isZero,
  Reader,
  text,
  u16,
  u32,
  u64,
  u8,
  utf8,
  type Bytes,
} from './bytes.js';
import { refuse } from './errors.js';
import { corruptHolders } from './graph.js';
import { hash } from './hash.js';

/** Profiles of PROTOCOL §2 by number. This client has the first two. */
export const PROFILES = {
  'honest-curious-server': 1,
  'malicious-server': 2,
  'malicious-server-sparse': 3,
} as const;

/** Name of a profile that this client has. */
export type ProfileName = 'honest-curious-server' | 'malicious-server';

/** Whom an offer's credentials come from (profiles 2 and 3). */
export interface Trust {
  readonly trustDomain: string;
  /** Public key of the issuer, 32 bytes. */
  readonly enrolmentKey: Bytes;
  /** Number of the revocation list; 0 for none. */
  readonly revocationNumber: number;
  /** SHA-256 of the list; zeros for none. */
  readonly revocationHash: Bytes;
}

/** What a session is: its cohort, its numbers and its noise. */
export interface Parameters {
  readonly version: number;
  readonly profile: number;
  readonly suite: number;
  readonly modulus: bigint;
  /** Coordinates of an encoded vector, 1 to 2^30. */
  readonly dim: number;
  readonly minClients: number;
  readonly maxClients: number;
  readonly threshold: number;
  /** Degree of the sharing graph; 0 for the complete graph. */
  readonly degree: number;
  readonly minSurvivors: number;
  readonly maxDropouts: number;
  readonly maxLosses: number;
  readonly colluders: number;
  readonly noiseLayers: number;
  /** ASCII JSON of §3.5; empty for a task that releases the exact sum. */
  readonly noiseBlock: Bytes;
  /** Seconds for rounds 1 to 6. */
  readonly deadlines: readonly number[];
  /** Issuer and revocation list; null in profile 1. */
  readonly trust: Trust | null;
  readonly graphBits: number;
  /** Profile 3: most clients that may draw one. */
  readonly inCap: number;
  /** Profile 3: signatures that open the unmasking. */
  readonly ownQuorum: number;
}

/** What an aggregator offers: one session of a task. */
export interface Offer {
  readonly aggregator: string;
  readonly taskId: string;
  readonly sessionNumber: bigint;
  readonly serverNonce: Bytes;
  /** Seconds since 1970. */
  readonly sessionEnd: bigint;
  /** SHA-256 of the payload, or empty. */
  readonly payloadHash: Bytes;
  readonly noiseTerms: Bytes;
  readonly parameters: Parameters;
}

/** Encodes a trust, also as what a client has seen. */
export function encodeTrust(trust: Trust): Bytes {
  return concat(
    text(trust.trustDomain),
    trust.enrolmentKey,
    u32(trust.revocationNumber),
    trust.revocationHash,
  );
}

/** Reads a trust. */
export function readTrust(reader: Reader): Trust {
  return {
    trustDomain: reader.text(1, 255),
    enrolmentKey: reader.take(32),
    revocationNumber: reader.u32(),
    revocationHash: reader.take(32),
  };
}

/** Encodes parameters; a tail has what the profile has. */
export function encodeParameters(p: Parameters): Bytes {
  const trust = p.trust === null ? new Uint8Array() : encodeTrust(p.trust);
  const tail =
    p.profile === 1
      ? u8(p.graphBits)
      : p.profile === 2
        ? trust
        : concat(trust, u8(p.graphBits), u32(p.inCap), u32(p.ownQuorum));
  return concat(
    u16(p.version),
    u16(p.profile),
    u16(p.suite),
    u64(p.modulus),
    u64(p.dim),
    ...[
      p.minClients,
      p.maxClients,
      p.threshold,
      p.degree,
      p.minSurvivors,
      p.maxDropouts,
      p.maxLosses,
      p.colluders,
    ].map(u32),
    u8(p.noiseLayers),
    blob(p.noiseBlock),
    ...p.deadlines.map(u32),
    blob(tail),
  );
}

/** Encodes an offer. */
export function encodeOffer(offer: Offer): Bytes {
  return concat(
    text(offer.aggregator),
    text(offer.taskId),
    u64(offer.sessionNumber),
    offer.serverNonce,
    u64(offer.sessionEnd),
    blob(offer.payloadHash),
    blob(offer.noiseTerms),
    encodeParameters(offer.parameters),
  );
}

function readParameters(reader: Reader): Parameters {
  const version = reader.u16();
  if (version !== 1) refuse('BAD_VERSION', 'R3.2-1', `the offer is of version ${version}`);
  const profile = reader.u16();
  if (profile < 1 || profile > 3) {
    refuse('BAD_CONFIG', 'R3.2-2', `the offer names the unknown profile ${profile}`);
  }
  const suite = reader.u16();
  if (suite < 1 || suite > 2) {
    refuse('BAD_CONFIG', 'R3.2-2', `the offer names the unknown suite ${suite}`);
  }
  const modulus = reader.u64();
  // Beyond 2^53 it is rounded, and refused by R3.2-3 all the same.
  const dim = Number(reader.u64());
  const minClients = reader.u32();
  const maxClients = reader.u32();
  const threshold = reader.u32();
  const degree = reader.u32();
  const minSurvivors = reader.u32();
  const maxDropouts = reader.u32();
  const maxLosses = reader.u32();
  const colluders = reader.u32();
  const noiseLayers = reader.u8();
  const noiseBlock = reader.blob(4096);
  const deadlines = [1, 2, 3, 4, 5, 6].map(() => reader.u32());
  const tail = new Reader(reader.blob(512), "the tail of the offer's parameters");
  const trust = profile === 1 ? null : readTrust(tail);
  const graphBits = profile === 2 ? 0 : tail.u8();
  const inCap = profile === 3 ? tail.u32() : 0;
  const ownQuorum = profile === 3 ? tail.u32() : 0;
  tail.end();
  return {
    version,
    profile,
    suite,
    modulus,
    dim,
    minClients,
    maxClients,
    threshold,
    degree,
    minSurvivors,
    maxDropouts,
    maxLosses,
    colluders,
    noiseLayers,
    noiseBlock,
    deadlines,
    trust,
    graphBits,
    inCap,
    ownQuorum,
  };
}

/** Decodes an offer of any profile; of the rules of §3.2 only version, profile and suite are checked. */
export function decodeOffer(bytes: Uint8Array): Offer {
  const reader = new Reader(bytes, 'the offer');
  const aggregator = reader.text(1, 255);
  const taskId = reader.text(1, 256);
  const sessionNumber = reader.u64();
  const serverNonce = reader.take(32);
  const sessionEnd = reader.u64();
  const payloadHash = reader.blob(32);
  if (payloadHash.length !== 0 && payloadHash.length !== 32) {
    badEncoding('the offer has a payload hash that is not of 0 or 32 bytes');
  }
  const noiseTerms = reader.blob(256);
  const parameters = readParameters(reader);
  reader.end();
  return {
    aggregator,
    taskId,
    sessionNumber,
    serverNonce,
    sessionEnd,
    payloadHash,
    noiseTerms,
    parameters,
  };
}

/** Signatures that open the unmasking: Q. */
export function quorumOf(parameters: Parameters): number {
  return parameters.profile === 3 ? parameters.ownQuorum : parameters.threshold;
}

/** Fewest clients that must share, and fewest that must send an input. */
export function leastSurvivors(parameters: Parameters): number {
  return Math.max(parameters.threshold, parameters.minSurvivors);
}

/** Checks the rules R3.2-1 to R3.2-10 of a decoded offer, but for what is in its noise block. */
export function checkOfferRules(offer: Offer): void {
  const p = offer.parameters;
  const demand = (holds: boolean, rule: string, what: string): void => {
    if (!holds) refuse('BAD_CONFIG', rule, `the offer has ${what}`);
  };
  demand(p.profile !== 3, 'R2-1', 'a profile that this client does not have');
  demand(offer.sessionNumber < 1n << 63n, 'R3.2-3', 'a session number beyond 2^63 − 1');
  demand(offer.sessionEnd < 1n << 63n, 'R3.2-3', 'an end beyond 2^63 − 1');
  demand(p.modulus >= 2n && p.modulus <= 1n << 62n, 'R3.2-3', 'a modulus outside of 2 to 2^62');
  demand(p.dim >= 1 && p.dim <= 2 ** 30, 'R3.2-3', 'a dimension outside of 1 to 2^30');
  demand(
    p.minClients >= 2 && p.minClients <= p.maxClients && p.maxClients <= 65535,
    'R3.2-3',
    'impossible sizes of the cohort',
  );
  demand(
    p.noiseLayers === 0 || (p.noiseLayers >= 2 && p.noiseLayers <= 17),
    'R3.2-3',
    `${p.noiseLayers} layers of noise`,
  );
  if (p.trust !== null && p.trust.revocationNumber === 0) {
    demand(isZero(p.trust.revocationHash), 'R3.2-3', 'a revocation hash without a number');
  }
  const rounds = p.profile === 1 ? [1, 3, 4, 6] : [1, 3, 4, 5, 6];
  p.deadlines.forEach((seconds, i) => {
    const holds = rounds.includes(i + 1) ? seconds >= 1 && seconds <= 7 * 24 * 3600 : seconds === 0;
    demand(holds, 'R3.2-4', `a deadline of ${seconds} s for round ${i + 1}`);
  });
  const t = p.threshold;
  const c = p.colluders;
  demand(t >= 2, 'R3.2-5', 'a threshold below 2');
  demand(
    t <= p.minSurvivors && p.minSurvivors <= p.minClients,
    'R3.2-5',
    'survivors that do not lie between threshold and cohort',
  );
  demand(p.minSurvivors >= c + 2, 'R3.2-5', 'too few survivors for its colluders');
  demand(
    p.maxDropouts <= p.maxLosses && p.maxLosses <= p.maxClients - t,
    'R3.2-5',
    'losses that leave too few clients',
  );
  if (p.profile === 1 && p.degree === 0) {
    demand(p.graphBits === 0, 'R3.2-6', 'graph bits without a ring');
    demand(t >= c + 1, 'R3.2-6', 'a threshold that its colluders reach');
  }
  if (p.profile === 1 && p.degree > 0) {
    demand(p.graphBits >= 1 && p.graphBits <= 128, 'R3.2-7', 'graph bits outside of 1 to 128');
    demand(
      p.degree % 2 === 0 && t <= p.degree && p.degree <= p.minClients - 2,
      'R3.2-7',
      'a degree that is odd, below the threshold, or too large for the cohort',
    );
    demand(
      corruptHolders(p.minClients, p.degree, t, c) <= 2 ** -(p.graphBits + 1),
      'R3.2-7',
      'a ring that its colluders reach',
    );
  }
  if (p.profile === 2) {
    demand(p.degree === 0, 'R3.2-8', 'a ring in the profile malicious-server');
    demand(2 * t > p.maxClients + c, 'R3.2-8', 'a threshold at which two quorums may be disjoint');
  }
  if (p.noiseBlock.length === 0) {
    demand(p.noiseLayers === 0, 'R3.2-10', 'layers without noise');
    demand(offer.noiseTerms.length === 0, 'R3.2-10', 'noise terms without noise');
  }
}

/** Hash of the configuration, session id and ctx0 (PROTOCOL §4). */
export function openingContext(offer: Offer): {
  configurationHash: Bytes;
  sid: Bytes;
  ctx0: Bytes;
} {
  const { suite } = offer.parameters;
  const configurationHash = hash(
    suite,
    'configuration',
    encodeParameters(offer.parameters),
    offer.payloadHash,
    offer.noiseTerms,
  );
  const sid = hash(
    suite,
    'sid',
    utf8(offer.aggregator),
    utf8(offer.taskId),
    u64(offer.sessionNumber),
    offer.serverNonce,
    u64(offer.sessionEnd),
    configurationHash,
  );
  return { configurationHash, sid, ctx0: hash(suite, 'ctx0', sid, configurationHash) };
}

/** ctx1, which binds the roster. */
export function rosterContext(
  suite: number,
  ctx0: Bytes,
  size: number,
  top: Bytes,
  graphSeed: Bytes,
): Bytes {
  return hash(suite, 'ctx1', ctx0, u32(size), top, graphSeed);
}

/** ctx2, which binds U2 and the noise; edge_root is empty in the profiles of this client. */
export function sharingContext(
  suite: number,
  ctx1: Bytes,
  edgeRoot: Bytes,
  u2: Bytes,
  noiseContext: Bytes,
): Bytes {
  return hash(suite, 'ctx2', ctx1, edgeRoot, u2, noiseContext);
}

/** ctx3, which binds U3. */
export function survivorContext(suite: number, ctx2: Bytes, u3: Bytes): Bytes {
  return hash(suite, 'ctx3', ctx2, u3);
}

/** What travels beside an upload, so that another view is found (R5.3-14). */
export function viewOf(suite: number, ctx2: Bytes): Bytes {
  return hash(suite, 'view', ctx2);
}
