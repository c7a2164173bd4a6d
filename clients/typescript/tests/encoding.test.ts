/** encoding.json: from a vector to residues and back (PROTOCOL §14), row by row. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';

import {
  centre,
  checkOfferRules,
  decodeOffer,
  encodeIntegers,
  equal,
  fixedPoint,
  gridOf,
  parseRational,
  readSessionNoise,
  readSigns,
  rotate,
  rotateBack,
  rotatedLength,
  round,
  select,
  shareNoise,
  signsKey,
  SkellamSamplers,
  SkellamTable,
  toHex,
  VectorEncoder,
  zeroResidues,
  type Bytes,
  type InputRequest,
  type Residues,
  type SessionNoise,
} from '../src/internals.js';
import { eachRow, hex, readVectors, refusedWith, type Row } from './vectors.js';

const ENCODER = new VectorEncoder();
/** Mechanisms of the vectors that this client refuses (R14.2-1). */
const OTHERS = ['smm', 'ddgauss', 'binomial'];
const isOther = (row: Row): boolean => OTHERS.includes(row.block ?? row.name);
const isOtherLaw = (row: Row): boolean => row.law !== 'skellam';

function near(found: ArrayLike<number>, expected: number[], parts = 1): void {
  assert.equal(found.length, expected.length);
  const largest = Math.max(...expected.map(Math.abs));
  expected.forEach((value, i) => {
    assert.ok(
      Math.abs(found[i]! - value) <= parts * 1e-9 * largest,
      `${i}: ${found[i]} is not ${value}`,
    );
  });
}

function same(found: ArrayLike<number | bigint>, expected: (number | string)[]): void {
  // −0 is 0.
  assert.deepEqual(
    Array.from(found, (x) => String(x === 0 ? 0 : x)),
    expected.map(String),
  );
}

function residuesOf(values: string[], modulus: bigint): Residues {
  const out = zeroResidues(modulus, values.length);
  values.forEach((value, i) => {
    if (out instanceof BigUint64Array) out[i] = BigInt(value);
    else out[i] = Number(value);
  });
  return out;
}

eachRow('encoding', 'exact', 15, async (row) => {
  const modulus = BigInt(row.modulus);
  const encode = () => encodeIntegers(row.values.map(BigInt), modulus, row.values.length);
  if (!row.success) {
    await refusedWith(20, encode);
    return;
  }
  same(encode(), row.residues);
  same(centre(residuesOf(row.residues, modulus), modulus), row.values);
});

function noiseOf(row: Row): SessionNoise {
  const offer = decodeOffer(hex(row.offer));
  checkOfferRules(offer);
  const noise = readSessionNoise(offer, (mechanism) => ENCODER.encodedLength(mechanism))!;
  ENCODER.check(noise);
  return noise;
}

eachRow(
  'encoding',
  'blocks',
  56,
  async (row) => {
    if (!row.success) {
      await refusedWith(row.code, () => noiseOf(row));
      return;
    }
    const noise = noiseOf(row);
    const grid = gridOf(noise.block.mechanism);
    assert.equal(grid.squaredLength, row.C);
    assert.equal(grid.rotated, row.rotated);
    assert.equal(grid.flagCoordinates, row.flag_coordinates);
    assert.equal(grid.roundingBound, row.B);
    for (const { clients, hashes } of row.tables) {
      assert.deepEqual(ENCODER.tables(noise, shareNoise(noise.block.noise, clients)), hashes);
    }
  },
  { skip: (row) => row.success && isOther(row), skipped: 3 },
);

test('mechanisms of the vectors that this client does not have are refused', async () => {
  const rows = readVectors('encoding')['blocks']!.filter((row: Row) => row.success && isOther(row));
  for (const row of rows) await refusedWith(2, () => noiseOf(row));
  assert.equal(rows.length, 3);
});

eachRow(
  'encoding',
  'tables',
  6,
  (row) => {
    const table = new SkellamTable(parseRational(row.variance)!);
    assert.equal(table.first, row.first);
    assert.equal(table.thresholds.length, row.count);
    const digest = createHash('sha256');
    const texts = table.thresholds.map((one) => one.toString(16).padStart(64, '0'));
    for (const text of texts) digest.update(hex(text));
    assert.equal(texts[0], row.threshold_0);
    assert.equal(digest.digest('hex'), row.sha256_of_thresholds);
    assert.equal(table.hash, row.hash);
  },
  { skip: isOtherLaw, skipped: 6 },
);

eachRow(
  'encoding',
  'draws',
  3,
  async (row) => {
    const draws = new Float64Array(row.out.length);
    const sampler = new SkellamSamplers().of(parseRational(row.variance)!);
    await sampler.addTo(draws, hex(row.key), row.label, row.start);
    same(draws, row.out);
  },
  { skip: isOtherLaw, skipped: 2 },
);

eachRow('encoding', 'rotations', 15, async (row) => {
  const sid = hex(row.sid);
  assert.equal(rotatedLength(row.rotation, row.dim), row.length);
  const key = signsKey(row.suite, sid);
  if (row.rotation !== 'none') {
    assert.equal(toHex(key), row.key);
    assert.deepEqual([...(await readSigns(key, row.dim))], row.signs);
  }
  const vector = Float64Array.from(row.in);
  const turned = await rotate(row.rotation, vector, row.suite, sid);
  assert.equal(turned.length, row.length);
  near(
    row.shown.map((i: number) => turned[i]),
    row.out,
  );
  near(await rotateBack(row.rotation, turned, row.dim, row.suite, sid), row.in);
});

eachRow('encoding', 'rounded', 4, async (row) => {
  const fixed = Float64Array.from(row.fixed, Number);
  same((await round(fixed, hex(row.key_0), row.B)).rounded, row.out);
});

eachRow('encoding', 'selections', 12, async (row) => {
  assert.equal(await select(parseRational(row.rate)!, hex(row.key_0)), row.selected);
});

const BLOCKS = new Map<string, Row>(
  readVectors('encoding')['blocks']!.map((row: Row) => [row.name, row]),
);

eachRow(
  'encoding',
  'encoded',
  36,
  async (row) => {
    const noise = noiseOf(BLOCKS.get(row.block));
    const request: InputRequest = {
      view: new Uint8Array(32),
      sid: hex(row.sid),
      suite: row.suite,
      modulus: noise.block.mechanism.modulus,
      dim: row.residues.length,
      noise: {
        ...noise,
        share: shareNoise(noise.block.noise, row.clients),
        ownKey: hex(row.key_0),
        layerKeys: row.layer_keys.map(hex),
      },
    };
    const steps = await ENCODER.steps(request, Float64Array.from(row.input));
    if (row.clipped !== null) near(steps.clipped, row.clipped);
    if (row.scaled !== null) near(steps.scaled, row.scaled);
    if (row.fixed !== null) {
      // Whether a vector is shrunk may depend on the last bit of a float.
      near(steps.fixed, row.fixed.map(Number), 4);
    }
    assert.equal(steps.attempt, row.attempt);
    same(steps.rounded, row.rounded);
    assert.equal(steps.selected, row.selected);
    same(steps.noise, row.noise);
    same(steps.residues, row.residues);
  },
  { skip: isOther, skipped: 6 },
);

eachRow(
  'encoding',
  'decoded',
  18,
  async (row) => {
    const noise = noiseOf(BLOCKS.get(row.block));
    const residues = residuesOf(row.residues, noise.block.mechanism.modulus);
    const sum = await ENCODER.decode(residues, noise, hex(row.sid), row.suite, row.inputs);
    near(sum.values, row.values);
    if (row.fitted === null) assert.equal(sum.fitted, null);
    else near([sum.fitted!], [row.fitted]);
  },
  { skip: isOther, skipped: 3 },
);

test('every list of encoding.json was read', () => {
  const keys = Object.entries(readVectors('encoding'))
    .filter(([, rows]) => Array.isArray(rows))
    .map(([key]) => key);
  assert.deepEqual(keys, [
    'exact',
    'blocks',
    'caps',
    'tables',
    'draws',
    'rotations',
    'rounded',
    'selections',
    'encoded',
    'decoded',
  ]);
  // caps are for who writes a block.
});

test('a vector that cannot be used is refused, and zeros take the same steps', async () => {
  const row = readVectors('encoding')['encoded']!.find(
    (one: Row) => one.block === 'a clip flag in a small ring',
  );
  const noise = noiseOf(BLOCKS.get(row.block));
  const key: Bytes = hex(row.key_0);
  const request: InputRequest = {
    view: new Uint8Array(32),
    sid: hex(row.sid),
    suite: row.suite,
    modulus: noise.block.mechanism.modulus,
    dim: row.residues.length,
    noise: {
      ...noise,
      share: shareNoise(noise.block.noise, row.clients),
      ownKey: key,
      layerKeys: [],
    },
  };
  for (const entries of [[NaN], [Infinity], [1], Array(noise.block.mechanism.dim + 1).fill(0)]) {
    const vector = new Float64Array(
      entries.length === 1 && entries[0] === 1
        ? 1
        : Math.max(entries.length, noise.block.mechanism.dim),
    );
    vector.set(entries);
    await assert.rejects(ENCODER.encode(request, vector), RangeError);
  }
  const zeros = await ENCODER.steps(request, null);
  assert.ok([...zeros.clipped].every((x) => x === 0));
  assert.ok(zeros.scaled.at(-1)! > 0, 'a vector of zeros fits the clip');
  assert.ok(zeros.noise.some((x) => x !== 0));
  assert.ok(equal(key, hex(row.key_0)));
});

test('the squared norm of what is rounded is at most C, exactly', () => {
  const exact = (fixed: Float64Array): bigint =>
    [...fixed].reduce((sum, g) => sum + BigInt(g) * BigInt(g), 0n);
  // At the limit nothing changes; a last bit beyond it, and the vector shrinks.
  assert.deepEqual([...fixedPoint(Float64Array.of(3, -4), 10, 25)], [3 * 2 ** 32, -4 * 2 ** 32]);
  for (const c of [25 - 2 ** -48, 24.999, 1, 2 ** -20]) {
    const fixed = fixedPoint(Float64Array.of(3, -4), 10, c);
    const limit = (BigInt(c * 2 ** 48) << 64n) >> 48n;
    assert.ok(exact(fixed) <= limit, `${c}`);
    assert.ok(exact(fixed) > (limit * 99n) / 100n, `${c}`);
  }
  assert.deepEqual([...fixedPoint(Float64Array.of(3, -4), 2, 25)], [2 ** 33, -(2 ** 33)]);
});
