/**
 * Sums with noise of mixed cohorts: all clients read the same estimate, it is as near as it is
 * announced, and where the vectors lie on the grid the noise has its law.
 */

import assert from 'node:assert/strict';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { test } from 'node:test';

import { fromHex } from '../src/index.js';
import {
  Deployment,
  GRID_DIM,
  GRID_EPSILON,
  GRID_TASK,
  MAX_DELTA,
  onGrid,
  readNpy,
  SECAGG,
  sumOf,
  writeNpy,
  type Printed,
} from './harness.js';

const missing = existsSync(SECAGG) ? false : `there is no ${SECAGG}`;
const EPSILON = 20;
const ROUNDS = 'advertise_keys = 300\nshare_keys = 300\nmasked_input = 300\nunmasking = 300\n';

/** Vectors of norm 0.9 to 1 that point into one direction, so that their sum is far from 0. */
const vectorOf = (client: number, dim: number): number[] =>
  Array.from(
    { length: dim },
    (_, i) => ((i % 3 === 0 ? -1 : 1) * (0.9 + client / 100)) / Math.sqrt(dim),
  );

interface Case {
  readonly name: string;
  readonly profile: 'honest-curious-server' | 'malicious-server';
  readonly dim: number;
  readonly graph: 'complete' | 'ring';
  /** Beside epsilon, delta and clip; null for a task on the grid. */
  readonly noise: string | null;
  readonly ladder: string;
  /** Where each TypeScript client kills itself; empty for one that does not. */
  readonly crashes: readonly string[];
  /** As many of the last of these call the HTTP edge, the others gRPC. */
  readonly atEdge: number;
}

const PYTHON_CLIENTS = 2;
const CASES: readonly Case[] = [
  {
    name: 'hadamard with layers and a clip flag that moves',
    profile: 'honest-curious-server',
    dim: 100,
    graph: 'complete',
    noise: 'clip_quantile = 0.9\n',
    ladder: 'ladder = 2\n',
    crashes: ['', 'commit 3', 'commit 4', 'call UploadChunk'],
    atEdge: 2,
  },
  {
    name: 'dft in the profile malicious-server',
    profile: 'malicious-server',
    dim: 90,
    graph: 'complete',
    noise: 'rotation = "dft"\n',
    ladder: 'ladder = 2\ncolluder_fraction = 0.1\n',
    crashes: ['', 'commit 4', 'commit 5', 'commit 6'],
    atEdge: 0,
  },
  {
    name: 'the law of noise on a ring',
    profile: 'honest-curious-server',
    dim: GRID_DIM,
    graph: 'ring',
    noise: null,
    ladder: 'ladder = 2\n',
    crashes: ['commit 2', 'commit 4', 'call RevealShares', 'commit 1', 'commit 3', 'commit 5'],
    atEdge: 3,
  },
  {
    name: 'the law of noise in the profile malicious-server',
    profile: 'malicious-server',
    dim: GRID_DIM,
    graph: 'complete',
    noise: null,
    ladder: 'ladder = 2\ncolluder_fraction = 0.1\n',
    crashes: ['commit 2', '', 'commit 4', 'commit 6', 'call UploadChunk'],
    atEdge: 4,
  },
];

for (const one of CASES) {
  test(`sum with noise, ${one.name}`, { skip: missing }, async () => {
    const size = PYTHON_CLIENTS + one.crashes.length;
    const deployment = await Deployment.make(size);
    try {
      await deployment.openEdge();
      const vectors = Array.from({ length: size }, (_, i) =>
        one.noise === null ? onGrid(i) : vectorOf(i, one.dim),
      );
      const numbers =
        one.noise === null
          ? GRID_TASK
          : `epsilon = ${EPSILON}.0\ndelta = 1e-7\nl2_clip = 1.0\naccountant = "mixture-simple"\n${one.noise}`;
      const maxEpsilon = one.noise === null ? GRID_EPSILON : EPSILON;
      const degree = one.graph === 'ring' ? 'degree = 4\nthreshold = 2\n' : '';
      const malicious = one.profile === 'malicious-server';
      const server = deployment.serve(
        `profile = "${one.profile}"\n[vector]\ndimension = ${one.dim}\n` +
          `[cohort]\nmin_clients = ${size}\nmax_clients = ${size}\nmin_survivors = ${size - 1}\n` +
          `${degree}[noise]\n${numbers}${one.ladder}` +
          `[rounds]\n${ROUNDS}${malicious ? 'consistency = 300\n' : ''}`,
        deployment.edgeSection(),
      );
      const policy =
        `profiles = ["${one.profile}"]\ngraphs = ["${one.graph}"]\n` +
        `max_epsilon = ${maxEpsilon}.0\nmax_delta = ${MAX_DELTA}\n`;
      const python = Array.from({ length: PYTHON_CLIENTS }, (_, i) =>
        deployment.python(`client-${i + 1}`, policy, vectors[i]!, '<f8'),
      );
      const typescript = one.crashes.map((crash, i) =>
        deployment.typescript(`client-${PYTHON_CLIENTS + i + 1}`, {
          crash,
          profiles: [one.profile],
          requireNoise: true,
          maxEpsilon,
          vector: vectors[PYTHON_CLIENTS + i]!,
          ...(i < one.crashes.length - one.atEdge ? {} : { edge: deployment.authority }),
        }),
      );
      const all = Promise.all([...typescript, ...python]);
      await Promise.race([
        all,
        server.then((ended) => {
          if (ended.code !== 0)
            throw new Error(`the server ended with ${ended.code}: ${ended.errors}`);
        }),
      ]);
      const printed: Printed[] = (await Promise.all(typescript)).map((ended) => ended.printed);
      for (const ended of await Promise.all(python)) assert.equal(ended.code, 0, ended.errors);
      assert.equal((await server).code, 0);
      const released = readNpy(deployment.path('sums/sum-1.npy'));
      const report = JSON.parse(readFileSync(deployment.path('sums/report-1.json'), 'utf8')) as {
        fitted: number | null;
        standard_error: number;
      };
      printed.forEach((client, i) => {
        assert.equal(client.released, true);
        assert.equal(client.replaced, null);
        assert.equal(client.survivors, size);
        if (report.fitted === null) assert.equal(client.fitted, null);
        else assert.ok(Math.abs(client.fitted! - report.fitted) < 1e-9);
        client.sum!.forEach((value, j) => {
          assert.ok(Math.abs(value - released[j]!) < 1e-9, `client ${i}, entry ${j}`);
        });
        writeFileSync(deployment.path(`typescript-${i}.receipt.bin`), fromHex(client.receipt));
      });
      const exact = sumOf(vectors);
      if (one.noise === null) {
        await deployment.checkLaw(exact);
        // Noise of half the variance, on the grid as well, is blamed.
        const steps = released.map((value, j) => (value - exact[j]!) * 128);
        const less = steps.map((step, j) => exact[j]! + Math.round(step * Math.SQRT1_2) / 128);
        writeNpy(deployment.path('less.npy'), less, '<f8');
        await assert.rejects(deployment.checkLaw(exact, 'less.npy'), /variance/);
      }
      const squares = released.reduce((sum, value, j) => sum + (value - exact[j]!) ** 2, 0);
      // The announced error is an upper bound. 1.5 times as much has, with 90 entries or
      // more, less than one chance in 10^9 (a chi-square variable 2.25 times its mean).
      const rms = Math.sqrt(squares / one.dim);
      assert.ok(rms < 1.5 * report.standard_error, `an error of ${rms}`);
      // Part of the vectors' common direction that the sum holds: 1 if all are in it, at
      // most 1/3 without those of the TypeScript clients. Noise of the announced error moves
      // it by 0.1 (standard deviation): one chance in 10^8 that it is off by 0.6.
      const dot = (a: readonly number[], b: readonly number[]): number =>
        a.reduce((sum, value, j) => sum + value * b[j]!, 0);
      const part = dot(released, exact) / dot(exact, exact);
      assert.ok(Math.abs(part - 1) < 0.6, `the sum holds ${part} of the vectors`);
      const receipts = one.crashes.map((_, i) => `typescript-${i}.receipt.bin`);
      const verified = await deployment.secagg(
        'sessions',
        'verify',
        'sums/receipt-1.bin',
        ...receipts,
        '--enrolment',
        deployment.enrolmentKey,
        '--json',
      );
      assert.equal(verified.code, 0, verified.output + verified.errors);
    } finally {
      await deployment.close();
    }
  });
}
