/** Exact sums of mixed cohorts, with TypeScript clients that are killed in every round. */

import assert from 'node:assert/strict';
import { existsSync, writeFileSync } from 'node:fs';
import { test } from 'node:test';

import { fromHex } from '../src/index.js';
import { Deployment, NO_NOISE, readNpy, SECAGG } from './harness.js';

const DIM = 37;
const vectorOf = (client: number): number[] =>
  Array.from({ length: DIM }, (_, i) => ((client * 7919 + i * 104729) % 20011) - 10000);

const missing = existsSync(SECAGG) ? false : `there is no ${SECAGG}`;

interface Case {
  readonly name: string;
  readonly server: string;
  readonly policy: string;
  readonly profile: 'honest-curious-server' | 'malicious-server';
  readonly modulusBits: number;
  /** Where each TypeScript client kills itself; empty for one that does not. */
  readonly crashes: readonly string[];
  /** As many of the last of these call the HTTP edge, the others gRPC. */
  readonly atEdge: number;
}

const PYTHON_CLIENTS = 2;
const rounds = 'advertise_keys = 300\nshare_keys = 300\nmasked_input = 300\nunmasking = 300\n';

// Commits: 1 joined, 2 shared, 3 delivered, 4 bound, 5 answered (or signed, 6 answered), then the end.
const CASES: readonly Case[] = [
  {
    name: 'honest-curious-server, complete graph',
    server: `[rounds]\n${rounds}`,
    policy: 'require_noise = false\n',
    profile: 'honest-curious-server',
    modulusBits: 20,
    crashes: ['', 'commit 1', 'commit 2', 'commit 3', 'commit 4', 'commit 5', 'call UploadChunk'],
    atEdge: 0,
  },
  {
    name: 'honest-curious-server, ring',
    server: `[rounds]\n${rounds}`,
    policy: 'require_noise = false\ngraphs = ["ring"]\n',
    profile: 'honest-curious-server',
    modulusBits: 33,
    crashes: ['commit 2', 'commit 4', 'call RevealShares', 'commit 1', 'commit 3', 'commit 5'],
    atEdge: 3,
  },
  {
    name: 'malicious-server',
    server: `[rounds]\n${rounds}consistency = 300\n`,
    policy: 'require_noise = false\nprofiles = ["malicious-server"]\n',
    profile: 'malicious-server',
    modulusBits: 20,
    crashes: [
      'commit 1',
      'commit 2',
      'commit 3',
      'commit 4',
      'commit 5',
      'commit 6',
      'call AdvertiseKeys',
      'call SignConsistency',
    ],
    atEdge: 0,
  },
  {
    name: 'honest-curious-server, HTTP edge',
    server: `[rounds]\n${rounds}`,
    policy: 'require_noise = false\n',
    profile: 'honest-curious-server',
    modulusBits: 40,
    crashes: ['', 'commit 1', 'commit 2', 'commit 3', 'commit 4', 'commit 5', 'call UploadChunk'],
    atEdge: 6,
  },
  {
    name: 'malicious-server, HTTP edge',
    server: `[rounds]\n${rounds}consistency = 300\n`,
    policy: 'require_noise = false\nprofiles = ["malicious-server"]\n',
    profile: 'malicious-server',
    modulusBits: 18,
    crashes: ['', ...['1', '2', '3', '4', '5', '6'].map((n) => `commit ${n}`), 'call ShareKeys'],
    atEdge: 7,
  },
];

for (const one of CASES) {
  test(`exact sum, ${one.name}`, { skip: missing }, async () => {
    const size = PYTHON_CLIENTS + one.crashes.length;
    const deployment = await Deployment.make(size);
    try {
      await deployment.openEdge();
      const ring = one.name.endsWith('ring');
      const degree = ring ? 'degree = 4\nthreshold = 2\n' : '';
      const server = deployment.serve(
        `profile = "${one.profile}"\n[vector]\ndimension = ${DIM}\nmodulus_bits = ${one.modulusBits}\n` +
          `[cohort]\nmin_clients = ${size}\nmax_clients = ${size}\nmin_survivors = ${size - 1}\n${degree}` +
          `[noise]\nnone = "${NO_NOISE}"\n${one.server}`,
        deployment.edgeSection(),
      );
      const python = Array.from({ length: PYTHON_CLIENTS }, (_, i) =>
        deployment.python(`client-${i + 1}`, one.policy, vectorOf(i), '<i8'),
      );
      const typescript = one.crashes.map((crash, i) =>
        deployment.typescript(`client-${PYTHON_CLIENTS + i + 1}`, {
          crash,
          profiles: [one.profile],
          vector: vectorOf(PYTHON_CLIENTS + i),
          ...(i < one.crashes.length - one.atEdge ? {} : { edge: deployment.authority }),
        }),
      );
      const failed = Promise.all([...typescript, ...python]);
      const contributions = await Promise.race([
        failed.then(() => Promise.all(typescript)),
        server.then((ended) => {
          if (ended.code !== 0)
            throw new Error(`the server ended with ${ended.code}: ${ended.errors}`);
          return Promise.all(typescript);
        }),
      ]);
      const expected = Array.from({ length: DIM }, (_, j) =>
        Array.from({ length: size }, (_, i) => vectorOf(i)[j]!).reduce((a, b) => a + b, 0),
      );
      contributions.forEach(({ printed, starts }, i) => {
        const who = `client killed at "${one.crashes[i]}"`;
        assert.equal(starts, one.crashes[i] === '' ? 1 : 2, who);
        assert.equal(printed.released, true, who);
        assert.deepEqual(printed.sum, expected, who);
        assert.equal(printed.survivors, size, who);
        assert.equal(printed.charge, 'kept', who);
        writeFileSync(deployment.path(`typescript-${i}.receipt.bin`), fromHex(printed.receipt));
      });
      for (const [i, ended] of (await Promise.all(python)).entries()) {
        assert.equal(ended.code, 0, ended.errors);
        assert.deepEqual(readNpy(deployment.path(`client-${i + 1}-sum.npy`)), expected);
      }
      assert.equal((await server).code, 0);
      assert.deepEqual(readNpy(deployment.path('sums/sum-1.npy')), expected);
      // The project's own command verifies the receipts, beside that of the aggregator.
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
