/**
 * The noise block of an offer, and what one client adds by it (PROTOCOL §3.5).
 *
 * Nothing here draws noise: {@link NoiseRule} says how much, `encoding.ts` draws it.
 */

import { decodeUtf8, utf8, type Bytes } from './bytes.js';
import { refuse, SecAggError } from './errors.js';
import { hash } from './hash.js';
import { Float, isObject, readJson, writeJson, type Json } from './json.js';
import type { Offer } from './parameters.js';
import {
  add,
  ceil,
  ceilTo,
  compareRational,
  divide,
  floor,
  formatRational,
  multiply,
  parseRational,
  rational,
  subtract,
  type Rational,
} from './rational.js';

/** How much noise a sum keeps; variances in squared steps of the grid. */
export interface NoiseRule {
  /** Variance v that privacy counts. */
  readonly countedVariance: Rational;
  readonly minSurvivors: number;
  readonly lossFraction: Rational;
  readonly colluders: number;
  readonly colluderFraction: Rational;
  /** Shares are multiples of 2^−shareBits. */
  readonly shareBits: number;
  /** Rungs L of the ladder; 0 for no layers. */
  readonly ladder: number;
}

/** All numbers of a mechanism. */
export interface MechanismNumbers {
  readonly mechanism: string;
  readonly dim: number;
  readonly l2Clip: number;
  readonly scaleFactor: number;
  readonly modulus: bigint;
  readonly numClients: number;
  readonly rotation: string;
  readonly roundingBias: number;
  /** Bound on every coordinate before rounding, in grid steps. */
  readonly linfBound: Rational;
  readonly clipFlagAmplitude: number;
  readonly maxNonzero: number | null;
  readonly signed: boolean;
}

/** Bounds of a clip that moves from session to session, in grid steps per caller's unit. */
export interface MovingUnit {
  readonly start: Rational;
  readonly lowest: Rational;
  readonly highest: Rational;
  readonly quantile: Rational;
}

/** A noise block as its reader understands it. */
export interface NoiseBlock {
  readonly mechanism: MechanismNumbers;
  readonly noise: NoiseRule;
  /** Hash of the sampler, 64 hexadecimal digits. */
  readonly noiseSampler: string;
  /** Probability with which a vector counts. */
  readonly selectionRate: Rational;
  readonly epsilon: number;
  readonly delta: number;
  readonly participations: number;
  readonly spare: number;
  readonly accountant: string;
  /** Numbers of a local randomiser, as they stand in the block; null for none. */
  readonly randomiser: { readonly [key: string]: Json } | null;
  readonly unit: MovingUnit | null;
}

/** Sessions that a block's figures count: its participations and the spare ones. */
export function countedSessions(block: NoiseBlock): number {
  return block.participations + block.spare;
}

const BLOCK_KEYS = [
  'version',
  'mechanism',
  'noise',
  'noise_sampler',
  'selection_rate',
  'epsilon',
  'delta',
  'participations',
  'spare',
  'accountant',
];
const MECHANISM_KEYS = [
  'mechanism',
  'dim',
  'l2_clip',
  'scale_factor',
  'modulus',
  'num_clients',
  'rotation',
  'rounding_bias',
  'linf_bound',
  'clip_flag_amplitude',
  'max_nonzero',
  'signed',
];
const NOISE_KEYS = [
  'counted_variance',
  'min_survivors',
  'loss_fraction',
  'colluders',
  'colluder_fraction',
  'share_bits',
  'ladder',
];
/** Counts in a block; narrower bounds are those of the mechanism (§14.2). */
const MOST = 2 ** 31;
/** Sessions that a block may count (§14.2). */
const MOST_SESSIONS = 1_000_000;

function bad(what: string): never {
  return refuse('BAD_CONFIG', 'R3.5-4', `the noise block ${what}`);
}

/** Fields of one object of the block, each taken with its type and range. */
class Fields {
  readonly #value: { readonly [key: string]: Json };
  readonly #name: string;

  constructor(value: Json | undefined, name: string, keys: readonly string[]) {
    if (!isObject(value)) bad(`has no object ${name}`);
    const found = Object.keys(value).sort().join();
    if (found !== [...keys].sort().join()) bad(`has other keys in ${name} than it must`);
    this.#value = value;
    this.#name = name;
  }

  #fail(key: string): never {
    return bad(`has a ${this.#name}.${key} of another type or out of range`);
  }

  raw(key: string): Json {
    return this.#value[key]!;
  }

  integer(key: string, least: number, most = MOST): number {
    const value = this.raw(key);
    if (typeof value !== 'bigint' || value < BigInt(least) || value > BigInt(most)) {
      this.#fail(key);
    }
    return Number(value);
  }

  float(key: string, holds: (value: number) => boolean): number {
    const value = this.raw(key);
    if (!(value instanceof Float) || !holds(value.value)) this.#fail(key);
    return value.value;
  }

  text(key: string): string {
    const value = this.raw(key);
    if (typeof value !== 'string' || value.length === 0) this.#fail(key);
    return value;
  }

  rational(key: string, digits: number, holds: (value: Rational) => boolean): Rational {
    const value = this.raw(key);
    const fraction = typeof value === 'string' ? parseRational(value, digits) : undefined;
    if (fraction === undefined || !holds(fraction)) this.#fail(key);
    return fraction;
  }
}

const ZERO = rational(0);
const ONE = rational(1);
const positive = (value: Rational): boolean => value.p > 0n;
const belowOne = (value: Rational): boolean => value.p >= 0n && compareRational(value, ONE) < 0;

function readMechanism(value: Json | undefined): MechanismNumbers {
  const fields = new Fields(value, 'mechanism', MECHANISM_KEYS);
  const modulus = fields.raw('modulus');
  if (typeof modulus !== 'bigint') bad('has a modulus that is no integer');
  const signed = fields.raw('signed');
  if (typeof signed !== 'boolean') bad('has a mechanism.signed that is no truth value');
  return {
    mechanism: fields.text('mechanism'),
    dim: fields.integer('dim', 1, 2 ** 30),
    l2Clip: fields.float('l2_clip', (x) => x > 0),
    scaleFactor: fields.float('scale_factor', (x) => x > 0),
    modulus,
    numClients: fields.integer('num_clients', 1),
    rotation: fields.text('rotation'),
    roundingBias: fields.float('rounding_bias', (x) => x >= 0 && x < 1),
    linfBound: fields.rational('linf_bound', 400, positive),
    clipFlagAmplitude: fields.float('clip_flag_amplitude', (x) => x >= 0),
    maxNonzero: fields.raw('max_nonzero') === null ? null : fields.integer('max_nonzero', 1),
    signed,
  };
}

function readRule(value: Json | undefined): NoiseRule {
  const fields = new Fields(value, 'noise', NOISE_KEYS);
  return {
    countedVariance: fields.rational('counted_variance', 400, positive),
    minSurvivors: fields.integer('min_survivors', 1),
    lossFraction: fields.rational('loss_fraction', 400, belowOne),
    colluders: fields.integer('colluders', 0),
    colluderFraction: fields.rational('colluder_fraction', 400, belowOne),
    // A layer's variance has 2^share_bits below the point; noise_layers is 17 at most.
    shareBits: fields.integer('share_bits', 0, 64),
    ladder: fields.integer('ladder', 0, 16),
  };
}

function readUnit(value: Json | undefined): MovingUnit {
  const fields = new Fields(value, 'unit', ['start', 'lowest', 'highest', 'quantile']);
  const unit = {
    start: fields.rational('start', 28, positive),
    lowest: fields.rational('lowest', 28, positive),
    highest: fields.rational('highest', 28, positive),
    quantile: fields.rational('quantile', 28, (x) => positive(x) && belowOne(x)),
  };
  if (
    compareRational(unit.lowest, unit.start) > 0 ||
    compareRational(unit.start, unit.highest) > 0
  ) {
    bad('has bounds of its unit in another order');
  }
  return unit;
}

/**
 * Reads a noise block (R3.5-4, BAD_CONFIG).
 *
 * Which mechanism, accountant and randomiser it names is not checked here.
 */
export function readNoiseBlock(bytes: Uint8Array): NoiseBlock {
  const value = readJson(asAscii(bytes));
  if (!isObject(value)) bad('is not in the form that writing it gives');
  const extra = ['randomiser', 'unit'].filter((key) => key in value);
  const fields = new Fields(value, 'the block', [...BLOCK_KEYS, ...extra]);
  fields.integer('version', 2, 2);
  const noiseSampler = fields.text('noise_sampler');
  if (!/^[0-9a-f]{64}$/.test(noiseSampler)) bad('has a noise_sampler that is no hash');
  const randomiser = extra.includes('randomiser') ? fields.raw('randomiser') : null;
  if (randomiser !== null && !isObject(randomiser)) bad('has a randomiser that is no object');
  if (extra.includes('randomiser') && randomiser === null) bad('has an empty randomiser');
  return {
    mechanism: readMechanism(value['mechanism']),
    noise: readRule(value['noise']),
    noiseSampler,
    selectionRate: fields.rational(
      'selection_rate',
      7,
      (x) => positive(x) && compareRational(x, ONE) <= 0 && x.q <= 1_000_000n,
    ),
    epsilon: fields.float('epsilon', (x) => x > 0),
    delta: fields.float('delta', (x) => x > 0 && x < 1),
    participations: fields.integer('participations', 1, MOST_SESSIONS),
    spare: fields.integer('spare', 0, MOST_SESSIONS),
    accountant: fields.text('accountant'),
    randomiser,
    unit: extra.includes('unit') ? readUnit(value['unit']) : null,
  };
}

function asAscii(bytes: Uint8Array): string {
  try {
    return decodeUtf8(bytes, 'the noise block');
  } catch (error) {
    if (error instanceof SecAggError) bad('is no text');
    throw error;
  }
}

/** What the noise terms of an offer say: the unit of this session, or null without one. */
export function readNoiseTerms(terms: Uint8Array, unit: MovingUnit | null): Rational | null {
  const fail = (what: string): never => refuse('BAD_CONFIG', 'R3.5-3', `the noise terms ${what}`);
  if (unit === null) return terms.length === 0 ? null : fail('name a unit where the clip stays');
  let value: Json | undefined;
  try {
    value = readJson(decodeUtf8(terms, 'the noise terms'));
  } catch (error) {
    if (error instanceof SecAggError) fail('are no text');
    throw error;
  }
  if (!isObject(value) || Object.keys(value).join() !== 'unit') return fail('are of another form');
  const text = value['unit'];
  const chosen = typeof text === 'string' ? parseRational(text, 28) : undefined;
  if (chosen === undefined) return fail('hold no fraction');
  if (compareRational(chosen, unit.lowest) < 0 || compareRational(unit.highest, chosen) < 0) {
    return fail('name a unit out of bounds');
  }
  return chosen;
}

/** A noise block that fits its offer, and the unit of the session. */
export interface SessionNoise {
  readonly block: NoiseBlock;
  readonly unit: Rational | null;
}

/**
 * Reads noise block and terms of an offer and checks that they fit it (R3.5-3, R3.5-4,
 * R3.5-6, R3.2-10).
 *
 * @param encodedLength Coordinates that vectors of a mechanism are encoded to, where the
 *   reader can tell.
 * @returns null for a task that releases the exact sum.
 */
export function readSessionNoise(
  offer: Offer,
  encodedLength: ((mechanism: MechanismNumbers) => number) | null,
): SessionNoise | null {
  const p = offer.parameters;
  if (p.noiseBlock.length === 0) return null;
  const block = readNoiseBlock(p.noiseBlock);
  const demand = (holds: boolean, rule: string, what: string): void => {
    if (!holds) refuse('BAD_CONFIG', rule, `the noise block ${what}`);
  };
  const layers = block.noise.ladder === 0 ? 0 : block.noise.ladder + 1;
  demand(p.noiseLayers === layers, 'R3.2-10', 'has another number of layers than the offer');
  demand(block.mechanism.modulus === p.modulus, 'R3.5-6', 'has another modulus than the offer');
  if (encodedLength !== null) {
    demand(
      encodedLength(block.mechanism) === p.dim,
      'R3.5-6',
      'encodes vectors to another length than the offer',
    );
  }
  demand(
    block.mechanism.numClients >= p.maxClients,
    'R3.5-6',
    'is planned for fewer clients than the offer takes',
  );
  demand(
    block.noise.minSurvivors <= p.minSurvivors,
    'R3.5-6',
    'counts on more survivors than the offer',
  );
  demand(
    block.noise.colluders >= p.colluders,
    'R3.5-6',
    'counts on fewer colluders than the offer',
  );
  return { block, unit: readNoiseTerms(offer.noiseTerms, block.unit) };
}

/** What each client adds when n have shared their keys. */
export interface NoiseShare {
  /** n = |U2|. */
  readonly shareHolders: number;
  /** D: clients that may be lost. */
  readonly mostLosses: number;
  /** c': clients that may collude. */
  readonly colluders: number;
  /** Variance that is never taken back. */
  readonly base: Rational;
  /** Variances of the layers; empty where there are none. */
  readonly layers: readonly Rational[];
}

/** Divides the noise among `shareHolders` clients (R3.5-1, BAD_CONFIG where no client is left to count). */
export function shareNoise(rule: NoiseRule, shareHolders: number): NoiseShare {
  const v = rule.countedVariance;
  const n = rational(shareHolders);
  const mostLosses = Math.min(
    shareHolders - rule.minSurvivors,
    Number(floor(multiply(rule.lossFraction, n))),
  );
  const colluders = Math.max(rule.colluders, Number(ceil(multiply(rule.colluderFraction, n))));
  const counted = shareHolders - mostLosses - colluders - 1;
  if (counted < 1 || mostLosses < 0) {
    refuse(
      'BAD_CONFIG',
      'R3.5-1',
      `the noise of ${shareHolders} clients leaves no client to count on`,
    );
  }
  const share = ceilTo(divide(v, rational(counted)), rule.shareBits);
  const none = { shareHolders, mostLosses, colluders, base: share, layers: [] };
  if (rule.ladder === 0) return none;
  const base = ceilTo(divide(v, rational(shareHolders - colluders - 1)), rule.shareBits);
  const unit = ceilTo(
    divide(subtract(share, base), rational(1n << BigInt(rule.ladder))),
    rule.shareBits,
  );
  if (unit.p <= 0n) return none;
  const layers = [unit];
  for (let i = 0; i < rule.ladder; i++) layers.push(multiply(unit, rational(1n << BigInt(i))));
  return { shareHolders, mostLosses, colluders, base, layers };
}

/** I(d): the layers that survivors give away after d losses, ascending. */
export function layersTakenBack(rule: NoiseRule, share: NoiseShare, losses: number): number[] {
  const unit = share.layers[0];
  if (unit === undefined) return [];
  const all = share.layers.reduce(add, share.base);
  const kept = divide(
    rule.countedVariance,
    rational(share.shareHolders - losses - share.colluders - 1),
  );
  const most = 1n << BigInt(rule.ladder);
  const spare = floor(divide(subtract(all, kept), unit));
  const r = spare < most ? spare : most;
  if (r <= 0n) return [];
  const out = [0];
  for (let i = 0n; (r - 1n) >> i > 0n; i++) if (((r - 1n) >> i) & 1n) out.push(Number(i) + 1);
  return out;
}

/** Refuses more losses than the noise tolerates (R3.5-1, TOO_MANY_DROPOUTS). */
export function checkNoiseLosses(share: NoiseShare, losses: number): void {
  if (losses > share.mostLosses) {
    refuse(
      'TOO_MANY_DROPOUTS',
      'R3.5-1',
      `${losses} clients are lost, and the noise tolerates ${share.mostLosses}`,
    );
  }
}

/**
 * noise_context of §3.5, which enters ctx2.
 *
 * @param tables Hashes of the samplers of base and layers, hexadecimal.
 */
export function noiseContext(suite: number, share: NoiseShare, tables: readonly string[]): Bytes {
  const value: Json = {
    base: formatRational(share.base),
    layers: share.layers.map(formatRational),
    roster: BigInt(share.shareHolders),
    tables: [...tables],
  };
  return hash(suite, 'noise-context', utf8(writeJson(value)));
}

/** The certificate of a sum's noise (§3.5); `given` is null where the writer cannot know it. */
export function noiseCertificate(
  rule: NoiseRule,
  share: NoiseShare,
  survivors: number,
  given: readonly number[] | null,
): Bytes {
  const losses = share.shareHolders - survivors;
  const removed = layersTakenBack(rule, share, losses);
  const kept = share.layers.filter((_, i) => !removed.includes(i)).reduce(add, share.base);
  const all = share.layers.reduce(add, share.base);
  const present = multiply(kept, rational(survivors - share.colluders - 1));
  const total =
    given === null
      ? null
      : removed.reduce(
          (sum, layer, i) => subtract(sum, multiply(share.layers[layer]!, rational(given[i]!))),
          multiply(all, rational(survivors)),
        );
  const value: Json = {
    share_holders: BigInt(share.shareHolders),
    survivors: BigInt(survivors),
    losses: BigInt(losses),
    unseen: 0n,
    colluders: BigInt(share.colluders),
    noise_required: formatRational(rule.countedVariance),
    base: formatRational(share.base),
    layers: share.layers.map(formatRational),
    removed: removed.map(BigInt),
    given: given === null ? null : given.map(BigInt),
    noise_present: formatRational(present),
    noise_total: total === null ? null : formatRational(total),
  };
  return utf8(writeJson(value));
}

/** Says whether a fraction is zero. */
export function isZeroRational(value: Rational): boolean {
  return compareRational(value, ZERO) === 0;
}
