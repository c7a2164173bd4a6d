/**
 * From a vector to residues with noise, and from a sum to its estimate (PROTOCOL §14).
 *
 * 1. Steps up to the fixed point use doubles; everything that privacy rests on is exact.
 * 2. Noise, rounding and selection read streams of keys that only this client derives, but
 *    for layers, whose keys can be given away.
 */

import { isZero, type Bytes } from './bytes.js';
import { refuse } from './errors.js';
import { zeroResidues, type Residues } from './masks.js';
import {
  shareNoise,
  type MechanismNumbers,
  type NoiseRule,
  type NoiseShare,
  type SessionNoise,
} from './noise-block.js';
import { openNoiseStream, SkellamSamplers } from './noise-stream.js';
import {
  add,
  ceil,
  compareRational,
  divide,
  multiply,
  ofDouble,
  rational,
  toDouble,
  toDoubleUp,
  type Rational,
} from './rational.js';
import { rotate, rotateBack, rotatedLength } from './rotation.js';
import type { NoiseEncoder, SumEstimate } from './client.js';
import type { InputRequest } from './session.js';
import { centre } from './vectors.js';

/** Mechanisms that this client has. */
const MECHANISMS: readonly string[] = ['skellam-mixture', 'skellam', 'skellam-counts'];
const FIXED = 2 ** 32;
const MOST_FLAG = 1n << 21n;
const ATTEMPTS = 64;

function bad(rule: string, what: string): never {
  return refuse('BAD_CONFIG', rule, `the noise block ${what}`);
}

const power = (exponent: number): Rational =>
  exponent >= 0 ? rational(1n << BigInt(exponent)) : rational(1n, 1n << BigInt(-exponent));
const within = (value: Rational, least: Rational, most: Rational): boolean =>
  compareRational(least, value) <= 0 && compareRational(value, most) <= 0;
const square = (value: Rational): Rational => multiply(value, value);

/** Numbers that follow from a mechanism (§14.5). */
export interface Grid {
  /** C: squared length of an encoded vector, rounded up to a double. */
  readonly squaredLength: number;
  /** d'. */
  readonly rotated: number;
  /** q: coordinates of the clip flag; 0 without one. */
  readonly flagCoordinates: number;
  /** A/√q: absolute value of each of them. */
  readonly flagValue: number;
  /** B of conditional rounding; null where the mechanism rounds otherwise. */
  readonly roundingBound: number | null;
}

function squaredLengthOf(m: MechanismNumbers): Rational {
  const length = add(square(ofDouble(m.l2Clip)), square(ofDouble(m.clipFlagAmplitude)));
  return multiply(square(ofDouble(m.scaleFactor)), length);
}

function flagCoordinates(m: MechanismNumbers): number {
  const amplitude = multiply(ofDouble(m.scaleFactor), ofDouble(m.clipFlagAmplitude));
  if (amplitude.p === 0n) return 0;
  const byBound = divide(amplitude, m.linfBound);
  const byModulus = divide(multiply(rational(8 * m.numClients), amplitude), rational(m.modulus));
  const larger = compareRational(byBound, byModulus) > 0 ? byBound : byModulus;
  const count = ceil(square(larger));
  if (count > MOST_FLAG) bad('R14.5-3', 'has a clip flag of too many coordinates');
  return Number(count);
}

/** The least double above a positive one. */
function nextUp(value: number): number {
  const words = new BigUint64Array(Float64Array.of(value).buffer);
  words[0]!++;
  return new Float64Array(words.buffer)[0]!;
}

/** B of R14.6-2, in doubles and in its order. */
export function conditionalBound(squaredLength: number, dim: number, beta: number): number {
  const length = nextUp(Math.sqrt(squaredLength));
  const s = Math.sqrt(dim);
  const w = (length + s) * (length + s);
  const b =
    beta === 0
      ? Math.sqrt(w)
      : Math.sqrt(
          Math.min(
            w,
            length * length + dim / 4 + Math.sqrt(-2 * Math.log(beta)) * (length + s / 2),
          ),
        );
  return Math.floor(b * b);
}

/** Computes the grid of a mechanism; refuses a rotation that is unknown. */
export function gridOf(m: MechanismNumbers): Grid {
  const squaredLength = toDoubleUp(squaredLengthOf(m));
  const rotated = rotatedLength(m.rotation, m.dim);
  const flags = flagCoordinates(m);
  return {
    squaredLength,
    rotated,
    flagCoordinates: flags,
    flagValue: flags === 0 ? 0 : (m.scaleFactor * m.clipFlagAmplitude) / Math.sqrt(flags),
    roundingBound:
      m.mechanism === 'skellam'
        ? conditionalBound(squaredLength, rotated + flags, m.roundingBias)
        : null,
  };
}

/** Refuses numbers outside of the tables of §14.2 (R14.2-1, R14.2-2). */
function checkMechanism(m: MechanismNumbers): void {
  const demand = (holds: boolean, what: string, rule = 'R14.2-1'): void => {
    if (!holds) bad(rule, what);
  };
  demand(
    MECHANISMS.includes(m.mechanism),
    `names the mechanism ${m.mechanism}, which this client does not have`,
  );
  demand(m.numClients >= 2 && m.numClients <= 2 ** 24, 'is planned for an impossible roster');
  demand(m.modulus >= 2n && m.modulus <= 1n << 62n, 'has an impossible modulus');
  demand(m.l2Clip >= 2 ** -256 && m.l2Clip <= 2 ** 256, 'has an impossible clip');
  demand(
    multiply(m.linfBound, rational(4096)).q === 1n &&
      within(m.linfBound, rational(1n, 4096n), power(25)),
    'has a bound on coordinates that is no multiple of 1/4096 up to 2^25',
  );
  demand(
    within(squaredLengthOf(m), power(-40), power(50)),
    'has a clip outside of 2^-20 to 2^25 steps',
  );
  if (m.mechanism === 'skellam-counts') checkCounts(m);
  else demand(m.maxNonzero === null && !m.signed, 'has numbers of skellam-counts', 'R14.2-2');
}

function checkCounts(m: MechanismNumbers): void {
  const demand = (holds: boolean, what: string): void => {
    if (!holds) bad('R14.2-2', `of skellam-counts ${what}`);
  };
  demand(m.linfBound.q === 1n, 'has a bound that is no integer');
  demand(m.maxNonzero !== null && m.maxNonzero <= m.dim, 'has no max_nonzero');
  demand(m.rotation === 'none' && m.scaleFactor === 1, 'is turned or scaled');
  demand(m.clipFlagAmplitude === 0, 'has a clip flag');
  // l2_clip is the least double whose exact square is at least L²·k.
  const norm = multiply(square(m.linfBound), rational(m.maxNonzero!));
  const below = nextDown(m.l2Clip);
  demand(
    compareRational(square(ofDouble(m.l2Clip)), norm) >= 0 &&
      compareRational(square(ofDouble(below)), norm) < 0,
    'has a clip of another norm',
  );
}

/** The greatest double below a positive one. */
function nextDown(value: number): number {
  const words = new BigUint64Array(Float64Array.of(value).buffer);
  words[0]!--;
  return new Float64Array(words.buffer)[0]!;
}

/** Least variance of one draw, and the largest of one table. */
const LEAST_VARIANCE = power(-20);
const MOST_VARIANCE = power(28);
const MOST_WIDE_VARIANCE = power(32);

/** Refuses a rule by which some roster has no share, or one that cannot be drawn (R14.2-1). */
function checkRule(rule: NoiseRule, m: MechanismNumbers): void {
  const demand = (holds: boolean, what: string): void => {
    if (!holds) bad('R14.2-1', what);
  };
  const v = rule.countedVariance;
  demand(
    compareRational(v, power(88)) <= 0 && v.p >> 512n === 0n && v.q >> 512n === 0n,
    'has an impossible variance',
  );
  demand(
    rule.minSurvivors >= rule.colluders + 2 && rule.minSurvivors <= m.numClients,
    'counts on an impossible number of survivors',
  );
  const most = 1n << 24n;
  for (const fraction of [rule.lossFraction, rule.colluderFraction]) {
    demand(fraction.p <= most && fraction.q <= most, 'has a fraction of too many digits');
  }
  demand(rule.shareBits <= 20 && rule.ladder <= 8, 'has shares or a ladder that are too fine');
  const loss = [Number(rule.lossFraction.p), Number(rule.lossFraction.q)] as const;
  const colluding = [Number(rule.colluderFraction.p), Number(rule.colluderFraction.q)] as const;
  let fewest = Infinity;
  let mostWithout = 0;
  // Products are below 2^48, so that doubles hold them; a quotient that is not whole
  // differs from the next integer by 2^-24 at least.
  for (let n = rule.minSurvivors; n <= m.numClients; n++) {
    const losses = Math.min(n - rule.minSurvivors, Math.floor((loss[0] * n) / loss[1]));
    const colluders = Math.max(rule.colluders, Math.ceil((colluding[0] * n) / colluding[1]));
    const counted = n - losses - colluders - 1;
    if (counted < fewest) fewest = counted;
    const without = rule.ladder > 0 ? n - colluders - 1 : counted;
    if (without > mostWithout) mostWithout = without;
  }
  demand(fewest >= 1, 'leaves some roster without a share of noise');
  const share = divide(v, rational(fewest));
  const scale = power(rule.shareBits);
  const up = (value: Rational): Rational => divide(rational(ceil(multiply(value, scale))), scale);
  const widest = m.mechanism === 'skellam' ? MOST_WIDE_VARIANCE : MOST_VARIANCE;
  demand(
    compareRational(up(divide(v, rational(mostWithout))), LEAST_VARIANCE) >= 0 &&
      compareRational(up(share), widest) <= 0,
    'asks for draws that are too narrow or too wide',
  );
}

/** Refuses a unit that the clip flag cannot move (R14.2-3). */
function checkUnit({ block }: SessionNoise): void {
  const { unit, mechanism } = block;
  if (unit === null) return;
  const demand = (holds: boolean, what: string): void => {
    if (!holds) bad('R14.2-3', what);
  };
  demand(mechanism.clipFlagAmplitude > 0, 'has a unit without a clip flag');
  const scale = ofDouble(mechanism.scaleFactor);
  for (const end of [unit.lowest, unit.highest]) {
    demand(within(divide(end, scale), power(-64), power(64)), 'has a unit that moves too far');
  }
}

/** Results of the steps of one encoding, for tests and for finding mistakes. */
export interface EncodingSteps {
  /** After the clip. */
  readonly clipped: Float64Array;
  /** Grid steps, clip flag included. */
  readonly scaled: Float64Array;
  /** Integers in units of 2^−32 grid steps. */
  readonly fixed: Float64Array;
  readonly rounded: Float64Array;
  /** Attempt of conditional rounding that was taken; null where rounding is another. */
  readonly attempt: number | null;
  /** Whether the vector counts. */
  readonly selected: boolean;
  /** Sum of all draws. */
  readonly noise: Float64Array;
  readonly residues: Residues;
}

/** Σ x², summed so that its relative error is below 2^−51. */
function sumOfSquares(vector: Float64Array, scale = 1): number {
  let sum = 0;
  let lost = 0;
  for (const entry of vector) {
    const term = entry * scale * (entry * scale) - lost;
    const next = sum + term;
    lost = next - sum - term;
    sum = next;
  }
  return sum;
}

/** Shortens a vector to a norm of at most `most`; returns the same one where it fits (R14.3-2). */
function clip(vector: Float64Array, most: number): Float64Array {
  const largest = vector.reduce((max, entry) => Math.max(max, Math.abs(entry)), 0);
  if (largest === 0) return vector;
  const norm = Math.sqrt(sumOfSquares(vector.map((entry) => entry / largest)));
  // In units of the largest entry, so that nothing overflows.
  const allowed = most / largest;
  if (norm * (1 + 2 ** -44) <= allowed) return vector;
  const factor = Math.min(1, (allowed / norm) * (1 - 2 ** -42));
  return vector.map((entry) => entry * factor);
}

/** Fixed point within the cap, whose exact norm is at most C (R14.5-1, R14.5-2). */
export function fixedPoint(
  scaled: Float64Array,
  bound: number,
  squaredLength: number,
): Float64Array {
  const limit = squaredLength * 2 ** 64;
  let capped = scaled.map((x) => Math.min(Math.max(x, -bound), bound));
  for (;;) {
    const fixed = capped.map((x) => Math.trunc(x * FIXED));
    const sum = sumOfSquares(fixed);
    // The sum in doubles decides where its error cannot matter, integers where it can.
    if (sum <= limit * (1 - 2 ** -50) || exactlyWithin(fixed, squaredLength)) return fixed;
    const factor = Math.sqrt(limit / sum) * (1 - 1e-9);
    capped = capped.map((x) => x * factor);
  }
}

function exactlyWithin(fixed: Float64Array, squaredLength: number): boolean {
  let sum = 0n;
  for (const g of fixed) sum += BigInt(g) * BigInt(g);
  return compareRational(rational(sum, 1n << 64n), ofDouble(squaredLength)) <= 0;
}

const ROUNDING = 'dpnoise/v1/rounding';
const SELECTION = 'dpnoise/v1/selection';
const BASE = 'dpnoise/v1/noise';
const LAYER = 'dpnoise/v1/layer';

/**
 * Rounds fixed-point coordinates (§14.6).
 *
 * @param bound B of conditional rounding; null for stochastic rounding.
 */
export async function round(
  fixed: Float64Array,
  key: Bytes,
  bound: number | null,
): Promise<{ rounded: Float64Array; attempt: number | null }> {
  const stream = await openNoiseStream(key, ROUNDING);
  const dim = fixed.length;
  const attempts = bound === null ? 1 : ATTEMPTS;
  for (let attempt = 0; attempt < attempts; attempt++) {
    const bytes = await stream.read(4 * attempt * dim, 4 * dim);
    const words = new Uint32Array(bytes.buffer);
    const rounded = fixed.map((g, j) => {
      const k = Math.floor(g / FIXED);
      return words[j]! < g - k * FIXED ? k + 1 : k;
    });
    if (bound === null) return { rounded, attempt: null };
    // Sums up to 2^53 are exact, and every bound is below that.
    if (rounded.reduce((sum, k) => sum + k * k, 0) <= bound) return { rounded, attempt };
  }
  return { rounded: fixed.map((g) => Math.trunc(g / FIXED)), attempt: ATTEMPTS };
}

/** Decides whether the vector counts (R14.7-1). */
export async function select(rate: Rational, key: Bytes): Promise<boolean> {
  const stream = await openNoiseStream(key, SELECTION);
  let word = 0n;
  for (const byte of await stream.read(0, 32)) word = (word << 8n) | BigInt(byte);
  return word * rate.q < rate.p << 256n;
}

/** Encodes vectors of the mechanisms `skellam-mixture`, `skellam` and `skellam-counts`. */
export class VectorEncoder implements NoiseEncoder {
  readonly #samplers = new SkellamSamplers();

  encodedLength(mechanism: MechanismNumbers): number {
    const { rotated, flagCoordinates: flags } = gridOf(mechanism);
    return rotated + flags;
  }

  tables(_session: SessionNoise, share: NoiseShare): readonly string[] {
    return [share.base, ...share.layers].map((variance) => this.#samplers.of(variance).hash);
  }

  /** Refuses a mechanism, a rule or a sampler that this client does not have (R14.2-1 to R14.2-3, R14.8-3). */
  check(session: SessionNoise): void {
    const { block } = session;
    checkMechanism(block.mechanism);
    checkRule(block.noise, block.mechanism);
    checkUnit(session);
    if (block.randomiser !== null)
      bad('R14.2-3', 'has a local randomiser, which this client does not have');
    const { roundingBound } = gridOf(block.mechanism);
    if (roundingBound !== null && roundingBound < 1) {
      bad('R14.2-2', 'has a grid on which everything becomes zero');
    }
    const share = shareNoise(block.noise, block.noise.minSurvivors);
    if (this.#samplers.of(share.base).hash !== block.noiseSampler) {
      bad('R14.8-3', 'has another sampler than this client');
    }
  }

  /**
   * Encodes a vector, noise included.
   *
   * @param vector `dim` finite entries in the caller's units; null for zeros.
   * @throws RangeError The vector cannot be used: encode null in its place (R3.5-5).
   */
  async encode(request: InputRequest, vector: Float64Array | null): Promise<Residues> {
    return (await this.steps(request, vector)).residues;
  }

  /** As {@link encode}, with what each step gives. */
  async steps(request: InputRequest, vector: Float64Array | null): Promise<EncodingSteps> {
    const noise = request.noise;
    if (noise === null) throw new TypeError('the session has no noise');
    const { mechanism } = noise.block;
    const given = vector ?? new Float64Array(mechanism.dim);
    if (given.length !== mechanism.dim) {
      throw new RangeError(`a vector of ${given.length} entries in place of ${mechanism.dim}`);
    }
    if (!given.every(Number.isFinite)) throw new RangeError('a vector that is not finite');
    if (isZero(noise.ownKey)) throw new TypeError('the key of the noise was erased');
    const made =
      mechanism.mechanism === 'skellam-counts'
        ? counts(given, mechanism)
        : await this.#grid(request, given);
    const selected = await select(noise.block.selectionRate, noise.ownKey);
    const draws = new Float64Array(made.rounded.length);
    await this.#samplers.of(noise.share.base).addTo(draws, noise.ownKey, BASE);
    for (const [i, variance] of noise.share.layers.entries()) {
      await this.#samplers.of(variance).addTo(draws, noise.layerKeys[i]!, LAYER);
    }
    const total = draws.map((draw, i) => draw + (selected ? made.rounded[i]! : 0));
    return { ...made, selected, noise: draws, residues: reduce(total, mechanism.modulus) };
  }

  async #grid(
    request: InputRequest,
    given: Float64Array,
  ): Promise<Omit<EncodingSteps, 'selected' | 'noise' | 'residues'>> {
    const { block, unit, ownKey } = request.noise!;
    const { mechanism } = block;
    const grid = gridOf(mechanism);
    const vector = unit === null ? given : inUnit(given, unit, mechanism.scaleFactor);
    const clipped = clip(vector, mechanism.l2Clip);
    const turned = await rotate(mechanism.rotation, clipped, request.suite, request.sid);
    const scaled = new Float64Array(grid.rotated + grid.flagCoordinates);
    turned.forEach((entry, i) => {
      scaled[i] = entry * mechanism.scaleFactor;
    });
    scaled.fill(clipped === vector ? grid.flagValue : -grid.flagValue, grid.rotated);
    const fixed = fixedPoint(scaled, toDouble(mechanism.linfBound), grid.squaredLength);
    const { rounded, attempt } = await round(fixed, ownKey, grid.roundingBound);
    return { clipped, scaled, fixed, rounded, attempt };
  }

  /** Reads a sum in the caller's units (§14.9). */
  async decode(
    residues: Residues,
    session: SessionNoise,
    sid: Bytes,
    suite: number,
    inputs: number,
  ): Promise<SumEstimate> {
    const { mechanism, selectionRate } = session.block;
    const grid = gridOf(mechanism);
    const integers = Float64Array.from(centre(residues, mechanism.modulus), Number);
    const turned = await rotateBack(
      mechanism.rotation,
      integers.subarray(0, grid.rotated),
      mechanism.dim,
      suite,
      sid,
    );
    const rate = toDouble(selectionRate);
    const unit =
      session.unit === null ? 1 : toDouble(divide(session.unit, ofDouble(mechanism.scaleFactor)));
    const values = turned.map((entry) => entry / mechanism.scaleFactor / rate / unit);
    if (grid.flagCoordinates === 0) return { values, fitted: null };
    const flags = integers.subarray(grid.rotated).reduce((sum, entry) => sum + entry, 0);
    const whole =
      Math.sqrt(grid.flagCoordinates) *
      mechanism.scaleFactor *
      2 *
      mechanism.clipFlagAmplitude *
      rate *
      inputs;
    return { values, fitted: Math.min(1, Math.max(0, 0.5 + flags / whole)) };
  }
}

function inUnit(vector: Float64Array, unit: Rational, scaleFactor: number): Float64Array {
  const factor = toDouble(divide(unit, ofDouble(scaleFactor)));
  const most = Number.MAX_VALUE;
  return vector.map((entry) => Math.min(Math.max(entry * factor, -most), most));
}

/** Brings counts within their bounds: the first k entries that are not zero stay (R14.5-5). */
function counts(
  given: Float64Array,
  m: MechanismNumbers,
): Omit<EncodingSteps, 'selected' | 'noise' | 'residues'> {
  if (!given.every(Number.isInteger)) throw new RangeError('counts that are no integers');
  const most = toDouble(m.linfBound);
  let left = m.maxNonzero!;
  const rounded = given.map((entry) => {
    const value = Math.min(Math.max(entry, m.signed ? -most : 0), most);
    if (value === 0 || left === 0) return 0;
    left--;
    return value;
  });
  return {
    clipped: rounded,
    scaled: rounded,
    fixed: rounded.map((k) => k * FIXED),
    rounded,
    attempt: null,
  };
}

function reduce(integers: Float64Array, modulus: bigint): Residues {
  const out = zeroResidues(modulus, integers.length);
  if (out instanceof BigUint64Array) {
    integers.forEach((entry, i) => {
      const rest = BigInt(entry) % modulus;
      out[i] = rest < 0n ? rest + modulus : rest;
    });
    return out;
  }
  const m = Number(modulus);
  integers.forEach((entry, i) => {
    const rest = entry % m;
    out[i] = rest < 0 ? rest + m : rest;
  });
  return out;
}
