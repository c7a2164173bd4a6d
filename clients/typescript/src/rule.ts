/**
 * The rule for small clients: what privacy a task's noise costs, in two closed forms.
 *
 * Source: docs/rule-for-small-clients.md, whose names are kept. The lesser statement holds.
 */

import { SecAggError } from './errors.js';
import { countedSessions, type NoiseBlock } from './noise-block.js';
import { add, multiply, ofDouble, toDouble, toDoubleUp } from './rational.js';

/** Inputs of the rule. */
export interface RuleInputs {
  /** v: the variance that privacy counts, in squared grid steps. */
  readonly variance: number;
  /** C: squared length of an encoded vector, in squared grid steps, rounded up. */
  readonly squaredLength: number;
  /** X: bound on every coordinate before rounding, in grid steps. */
  readonly coordinateBound: number;
  /** d: coordinates that are encoded. */
  readonly dim: number;
  /** T: sessions of one client. */
  readonly sessions: number;
  /** δ. */
  readonly delta: number;
}

/** What the rule states; null where it makes no statement. */
export interface RuleStatements {
  readonly a: number | null;
  readonly b: number | null;
  /** The lesser of both. */
  readonly epsilon: number | null;
}

/** e^(x²)·erfc(x) for x ≥ 0, by its series or its continued fraction. */
function scaledErfc(x: number): number {
  if (x < 2.5) {
    let term = x;
    let sum = 0;
    for (let n = 0; term > sum * 1e-18; n++) {
      sum += term;
      term *= (2 * x * x) / (2 * n + 3);
    }
    // erf(x) = 2/√π e^(−x²) · sum, every term positive.
    return Math.exp(x * x) - (2 / Math.sqrt(Math.PI)) * sum;
  }
  let fraction = x;
  for (let k = 120; k >= 1; k--) fraction = x + k / 2 / fraction;
  return 1 / (Math.sqrt(Math.PI) * fraction);
}

/** Logarithm of the normal distribution function. */
export function logNormalCdf(x: number): number {
  const z = Math.abs(x) / Math.SQRT2;
  const logTail = -z * z + Math.log(scaledErfc(z) / 2);
  return x <= 0 ? logTail : Math.log1p(-Math.exp(logTail));
}

/** Least ε ≥ 0 with δ_μ(ε) + D·(1 + e^ε) ≤ δ, or null where there is none. */
function leastEpsilon(mu: number, charge: number, delta: number): number | null {
  const excess = (epsilon: number): number =>
    Math.exp(logNormalCdf(mu / 2 - epsilon / mu)) -
    Math.exp(epsilon + logNormalCdf(-mu / 2 - epsilon / mu)) +
    charge * (1 + Math.exp(epsilon)) -
    delta;
  if (excess(0) <= 0) return 0;
  // The sum falls as long as Φ(−μ/2 − ε/μ) > D, and rises from there on.
  const falls = (epsilon: number): boolean =>
    charge === 0 || logNormalCdf(-mu / 2 - epsilon / mu) > Math.log(charge);
  let high = 1;
  while (falls(high) && excess(high) > 0 && high < 1e9) high *= 2;
  if (!falls(high)) {
    let low = 0;
    for (let i = 0; i < 100; i++) {
      const middle = (low + high) / 2;
      if (falls(middle)) low = middle;
      else high = middle;
    }
    high = low;
  }
  if (!(excess(high) <= 0)) return null;
  let low = 0;
  for (let i = 0; i < 100; i++) {
    const middle = (low + high) / 2;
    if (excess(middle) <= 0) high = middle;
    else low = middle;
  }
  return high;
}

function shiftOf(v: number): number {
  const g = (0.5 + (0.125 + 0.25 / v) / v) / v;
  const c = -2 * Math.log1p(-g);
  return Math.sqrt((2 * c) / (1 + Math.sqrt(1 - c)));
}

function statementA(inputs: RuleInputs): number | null {
  const { variance: v, squaredLength, coordinateBound, dim, sessions, delta } = inputs;
  const m = shiftOf(v);
  const s = Math.ceil(Math.min(coordinateBound, Math.sqrt(squaredLength)));
  let least: number | null = null;
  for (let sixteenths = 32; sixteenths <= 256; sixteenths++) {
    const w = Math.ceil((sixteenths / 16) * Math.sqrt(v));
    // Without this test a large bound makes the tail vanish, and the statement false.
    if (w <= s) continue;
    const t = (w + 0.5) * m * m;
    const mu =
      Math.sqrt(sessions * squaredLength) * m * (Math.expm1(t) / t) * Math.exp((m * m) / 2);
    const u = w - s;
    const root = Math.sqrt(u * u + v * v);
    const exponent = u * Math.asinh(u / v) - (u * u) / (root + v);
    const epsilon = leastEpsilon(mu, sessions * dim * Math.exp(-exponent), delta);
    if (epsilon !== null && (least === null || epsilon < least)) least = epsilon;
  }
  return least;
}

/** Orders at which Rényi moments are looked at. */
const ORDERS: readonly number[] = [
  ...Array.from({ length: 31 }, (_, i) => i + 2),
  ...Array.from({ length: 11 }, (_, i) => 34 + 3 * i),
  ...[72, 80, 96, 112, 128, 160, 192, 256],
];

/** Moments c_0 … c_most of the law, and the row of binomials that goes with them. */
function moments(s: number, most: number): number[] {
  const c = [1, 0];
  let row = [1, 1];
  for (let l = 1; l < most; l++) {
    let next = Math.expm1(l * s) * c[l]!;
    for (let i = 0; i < l; i++) {
      next += row[i]! * Math.exp(s * i) * Math.expm1(s) ** (l - i) * c[i]!;
    }
    c.push(next);
    row = [1, ...row.slice(1).map((value, i) => value + row[i]!), 1];
  }
  return c;
}

/** κ of an order: how fast a squared step costs privacy at most. */
export function momentQuotient(variance: number, coordinateBound: number, order: number): number {
  const s = shiftOf(variance) ** 2;
  return quotient(moments(s, order), coordinateBound, order);
}

function quotient(c: readonly number[], bound: number, order: number): number {
  const binomials = [1];
  for (let l = 1; l <= order; l++) binomials.push((binomials[l - 1]! * (order - l + 1)) / l);
  const b = (h: number): number => {
    let sum = 0;
    for (let l = order; l >= 2; l--) sum = sum * h + binomials[l]! * c[l]!;
    return sum;
  };
  let greatest = 0;
  let h = bound;
  for (let k = 0; k < 40; k++) {
    const next = 0.84 * h;
    const u = next * next * b(next);
    greatest = Math.max(greatest, b(h) * (u === 0 ? 1 : Math.log1p(u) / u));
    h = next;
  }
  return Math.max(greatest, b(h));
}

function statementB(inputs: RuleInputs): number | null {
  const { variance, squaredLength, coordinateBound, sessions, delta } = inputs;
  if (coordinateBound > 1) return null;
  const s = shiftOf(variance) ** 2;
  const orders = ORDERS.filter((order) => order * order * s <= 600);
  const c = moments(s, Math.max(2, ...orders));
  let least: number | null = null;
  for (const order of orders) {
    const kappa = quotient(c, coordinateBound, order) / (order - 1);
    const conversion =
      (Math.log(1 / delta) + (order - 1) * Math.log1p(-1 / order) - Math.log(order)) / (order - 1);
    const epsilon = Math.max(0, sessions * squaredLength * kappa + conversion);
    if (least === null || epsilon < least) least = epsilon;
  }
  return least;
}

/** Evaluates the rule. */
export function smallClientRule(inputs: RuleInputs): RuleStatements {
  if (inputs.squaredLength === 0) return { a: 0, b: 0, epsilon: 0 };
  if (!(inputs.variance >= 4)) return { a: null, b: null, epsilon: null };
  const a = statementA(inputs);
  const b = statementB(inputs);
  const epsilon = a === null ? b : b === null ? a : Math.min(a, b);
  return { a, b, epsilon };
}

/** Inputs of the rule from a noise block whose vectors are encoded to `dim` coordinates. */
export function ruleInputs(block: NoiseBlock, dim: number): RuleInputs {
  const { scaleFactor, l2Clip, clipFlagAmplitude, linfBound } = block.mechanism;
  const square = (value: number) => multiply(ofDouble(value), ofDouble(value));
  return {
    variance: toDouble(block.noise.countedVariance),
    squaredLength: toDoubleUp(
      multiply(square(scaleFactor), add(square(l2Clip), square(clipFlagAmplitude))),
    ),
    coordinateBound: toDouble(linfBound),
    dim,
    sessions: countedSessions(block),
    delta: block.delta,
  };
}

/** Least δ for which the rule is made: below it the samplers' distance would count. */
const LEAST_DELTA = 1e-15;

/**
 * Checks that the epsilon which a block claims is one that its noise keeps (§ "What is
 * checked", points 2 and 4).
 *
 * @throws SecAggError POLICY_VIOLATION where the rule does not bear the claim, or cannot
 *   evaluate the task.
 */
export function checkClaim(block: NoiseBlock, dim: number): void {
  const fail = (what: string, nextStep?: string): never => {
    const notes = nextStep === undefined ? {} : { nextStep };
    throw new SecAggError('POLICY_VIOLATION', what, { rule: 'R5.0-4', ...notes });
  };
  if (block.accountant !== 'mixture-simple') {
    fail(
      `the task was planned with the accountant ${block.accountant}, which this client does not compute`,
      'Ask the operator to plan it with mixture-simple, or approve the hash of its noise block.',
    );
  }
  if (block.mechanism.mechanism !== 'skellam-mixture') {
    fail(`the rule for small clients does not cover the mechanism ${block.mechanism.mechanism}`);
  }
  if (block.selectionRate.p !== block.selectionRate.q || block.randomiser !== null) {
    fail('the rule for small clients covers neither a selection of vectors nor a randomiser');
  }
  if (block.delta < LEAST_DELTA) fail('the rule for small clients needs a delta of 1e-15 at least');
  const { epsilon } = smallClientRule(ruleInputs(block, dim));
  if (epsilon === null) return fail('the noise of the task keeps no epsilon at its delta');
  if (epsilon > block.epsilon) {
    fail(`the noise of the task keeps epsilon ${epsilon}, and not ${block.epsilon} as it claims`);
  }
}
