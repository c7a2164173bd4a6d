/** accounting.json, and the arithmetic below it. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  formatFloat,
  logNormalCdf,
  momentQuotient,
  ofDecimal,
  ofDouble,
  parseRational,
  rational,
  readJson,
  readNoiseBlock,
  ruleInputs,
  smallClientRule,
  toDouble,
  toDoubleUp,
  utf8,
} from '../src/internals.js';
import { eachRow } from './vectors.js';

const near = (found: number | null, expected: string | null): void => {
  if (expected === null) assert.equal(found, null);
  else assert.ok(Math.abs(found! / Number(expected) - 1) < 1e-9, `${found} is not ${expected}`);
};
const double = (text: string): number => toDouble(parseRational(text)!);

eachRow('accounting', 'rules', 13, (row) => {
  const inputs = {
    variance: double(row.counted_variance),
    squaredLength: toDoubleUp(parseRational(row.l2_clip_squared_steps)!),
    coordinateBound: double(row.linf_bound),
    dim: row.dim,
    sessions: row.releases,
    delta: double(row.delta),
  };
  if (row.noise_block !== undefined) {
    assert.deepEqual(ruleInputs(readNoiseBlock(utf8(row.noise_block)), row.dim), inputs);
  }
  const found = smallClientRule(inputs);
  near(found.a, row.a);
  near(found.b, row.b);
  near(found.epsilon, row.epsilon);
});

eachRow('accounting', 'quotients', 3, (row) => {
  const kappa = momentQuotient(double(row.counted_variance), double(row.linf_bound), row.order);
  // The files hold κ_α, which is κ over α − 1.
  near(kappa / (row.order - 1), row.quotient);
});

test('the normal distribution function holds in both tails', () => {
  // By Python's statistics and math.erfc.
  for (const [x, expected] of [
    [0, Math.log(0.5)],
    [-1, -1.8410216450092634],
    [-3.5, -8.366065308344092],
    [-3.6, -8.745923631887399],
    [-10, -53.23128515051247],
    [2, -0.0230129093289635],
  ] as const) {
    assert.ok(Math.abs(logNormalCdf(x) / expected - 1) < 1e-11, `${x}: ${logNormalCdf(x)}`);
  }
});

test('floats are written as Python writes them', () => {
  for (const text of [
    '0.0',
    '-0.0',
    '1.0',
    '0.0001',
    '1e-05',
    '1.5e-07',
    '123456.789',
    '1e+16',
    '1234567890123456.0',
    '2.5e+300',
    '5e-324',
    '1e-06',
  ]) {
    assert.equal(formatFloat(Number(text)), text);
  }
});

test('doubles and fractions agree, also where a double cannot hold the fraction', () => {
  for (const value of [0, 1, 0.1, 1e-300, 5e-324, 123456789.125, 1.7976931348623157e308]) {
    assert.equal(toDouble(ofDouble(value)), value);
    assert.equal(toDoubleUp(ofDouble(value)), value);
  }
  assert.equal(toDouble(rational(1n, 3n)), 1 / 3);
  assert.equal(toDouble(rational(2n, 3n)), 2 / 3);
  assert.ok(toDoubleUp(rational(1n, 3n)) > 1 / 3);
  assert.equal(toDouble(rational((1n << 53n) + 1n)), 2 ** 53);
  assert.equal(toDoubleUp(rational((1n << 53n) + 1n)), 2 ** 53 + 2);
  assert.equal(parseRational('2/4'), undefined);
  assert.equal(parseRational('01/4'), undefined);
});

test('a limit means the number that it is written as', () => {
  const written: [number, bigint, bigint][] = [
    [0, 0n, 1n],
    [0.1, 1n, 10n],
    [0.35, 7n, 20n],
    [1e-7, 1n, 10_000_000n],
    [1.5e22, 15n * 10n ** 21n, 1n],
  ];
  for (const [value, p, q] of written) assert.deepEqual(ofDecimal(value), { p, q });
  assert.throws(() => ofDecimal(NaN), RangeError);
});

test('JSON in any other form than its own is refused', () => {
  for (const text of ['{"a":1}', '[]', '{"a":[1,2.0,"x"],"b":null}', '"\\u00e9"']) {
    assert.notEqual(readJson(text), undefined);
  }
  for (const text of [
    '{"b":1,"a":2}',
    '[1, 2]',
    '{"a":1,"a":1}',
    '1.50',
    '"é"',
    '[[[[[[[[[[1]]]]]]]]]]',
    'NaN',
    '1e400',
    '',
  ]) {
    assert.equal(readJson(text), undefined);
  }
});
