/** Clients over an aggregator in memory: sums, faults, restarts, budgets, limits. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  Client,
  KINDS,
  MemoryStore,
  SecAggError,
  utf8,
  VectorEncoder,
  type ClientSettings,
  type ClientState,
  type Contribution,
  type InputVector,
  type Parameters,
  type ProvenAggregator,
  type Store,
} from '../src/internals.js';
import { PARAMETERS, TestAggregator, TestClock } from './aggregator.js';
import { readVectors } from './vectors.js';

const NAMES = ['ann', 'bob', 'Carl', 'dora'];
const vectorOf = (client: number): number[] =>
  Array.from({ length: PARAMETERS.dim }, (_, i) => 1000 * client - 77 * i);
const total = (clients: readonly number[]): number[] =>
  vectorOf(0).map((_, i) => clients.reduce((sum, client) => sum + vectorOf(client)[i]!, 0));

class Crash extends Error {}

/** A store after whose n-th commit, or before it, the process is gone. */
class CrashingStore implements Store {
  readonly inner = new MemoryStore();
  #left: number;
  readonly #before: boolean;
  constructor(commit: number, before: boolean) {
    this.#left = commit;
    this.#before = before;
  }
  load(): Promise<ClientState> {
    return this.inner.load();
  }
  async commit(state: ClientState): Promise<void> {
    const now = --this.#left === 0;
    if (now && this.#before) throw new Crash();
    await this.inner.commit(state);
    if (now) throw new Crash();
  }
  close(): Promise<void> {
    return Promise.resolve();
  }
}

interface Party {
  readonly aggregator: TestAggregator;
  readonly clock: TestClock;
}

function settingsOf(party: Party, name: string, store: Store): ClientSettings {
  return {
    transport: party.aggregator.transport(name),
    store,
    taskId: 'task',
    limits: { requireNoise: false, maxEpsilon: 4, maxDelta: 1e-6 },
    noise: new VectorEncoder(),
    clock: party.clock.read,
    sleep: party.clock.sleep,
    waitSeconds: 100_000,
    attempts: 1,
  };
}

/** Runs a client; where its process crashes, another one resumes with the same state. */
async function run(
  party: Party,
  name: string,
  store: Store,
  input: InputVector,
  change: Partial<ClientSettings> = {},
): Promise<Contribution> {
  for (;;) {
    try {
      return await new Client({ ...settingsOf(party, name, store), ...change }).contribute(input);
    } catch (error) {
      if (!(error instanceof Crash)) throw error;
    }
  }
}

function makeParty(
  parameters: Parameters = PARAMETERS,
  more: Partial<ConstructorParameters<typeof TestAggregator>[0]> = {},
): Party {
  const clock = new TestClock();
  return { clock, aggregator: new TestAggregator({ parameters, ...more }, clock) };
}

test('four clients get the sum', async () => {
  const party = makeParty();
  const stores = NAMES.map(() => new MemoryStore());
  const all = await Promise.all(NAMES.map((name, i) => run(party, name, stores[i]!, vectorOf(i))));
  for (const one of all) {
    assert.equal(one.released, true);
    assert.deepEqual([...one.sum!], total([0, 1, 2, 3]));
    assert.equal(one.survivors, 4);
    assert.equal(one.charge, 'kept');
  }
  for (const store of stores) {
    const { session, budgets } = await store.load();
    assert.equal(session!.seed, null);
    assert.equal(session!.delivery, null);
    assert.equal(session!.upload, null);
    assert.equal(Object.values(budgets)[0]!.kept, 1);
  }
});

test('a client that crashes before or after any commit continues with the same messages', async () => {
  for (const before of [false, true]) {
    for (let commit = 1; commit <= 6; commit++) {
      const party = makeParty();
      const store = new CrashingStore(commit, before);
      const all = await Promise.all(
        NAMES.map((name, i) => run(party, name, i === 0 ? store : new MemoryStore(), vectorOf(i))),
      );
      for (const one of all) assert.deepEqual([...one.sum!], total([0, 1, 2, 3]));
      const state = await store.load();
      assert.equal(Object.values(state.budgets)[0]!.kept, 1, `commit ${commit}`);
      assert.equal(party.aggregator.sessions.length, 1);
    }
  }
});

test('what was bound leaves after a restart, whatever vector is given then', async () => {
  const party = makeParty();
  const store = new CrashingStore(4, false);
  const others = NAMES.slice(1).map((name, i) =>
    run(party, name, new MemoryStore(), vectorOf(i + 1)),
  );
  const first = new Client(settingsOf(party, 'ann', store)).contribute(vectorOf(0));
  await assert.rejects(first, Crash);
  assert.equal((await store.load()).session!.state, 'bound');
  const second = await run(party, 'ann', store, vectorOf(9));
  assert.deepEqual([...second.sum!], total([0, 1, 2, 3]));
  await Promise.all(others);
});

test('calls that fail, and answers that are lost, are repeated', async () => {
  for (const error of ['UNREACHABLE', 'OVERLOADED', 'STORAGE_FAILED', 'SHUTTING_DOWN'] as const) {
    const party = makeParty();
    const failed = new Set<string>();
    party.aggregator.fault = (name, method, moment) => {
      const key = `${name}/${method}/${moment}`;
      if (failed.has(key)) return null;
      failed.add(key);
      return error;
    };
    const all = await Promise.all(
      NAMES.map((name, i) => run(party, name, new MemoryStore(), vectorOf(i))),
    );
    for (const one of all) assert.deepEqual([...one.sum!], total([0, 1, 2, 3]));
    // GetOffer, AdvertiseKeys, ShareKeys, GetUploadStatus, UploadChunk, RevealShares,
    // GetUpdate and FetchChunk, before and after, of four clients.
    assert.equal(failed.size, 4 * 8 * 2);
  }
});

test('an upload continues where the aggregator says', async () => {
  const party = makeParty();
  let corrupt = 3;
  party.aggregator.fault = (name, method, moment) =>
    name === 'bob' && method === 'UploadChunk' && moment === 'before' && corrupt-- > 0
      ? 'UPLOAD_CORRUPT'
      : null;
  const all = await Promise.all(
    NAMES.map((name, i) => run(party, name, new MemoryStore(), vectorOf(i))),
  );
  for (const one of all) assert.deepEqual([...one.sum!], total([0, 1, 2, 3]));
  assert.ok(corrupt < 0);
});

test('a client with another view leaves before anything is bound', async () => {
  const party = makeParty(PARAMETERS, { lost: 'ann' });
  party.aggregator.fault = (name, method) =>
    name === 'ann' && method === 'GetUploadStatus' ? 'VIEW_DIFFERS' : null;
  const store = new MemoryStore();
  const others = NAMES.slice(1).map((name, i) =>
    run(party, name, new MemoryStore(), vectorOf(i + 1)),
  );
  await assert.rejects(run(party, 'ann', store, vectorOf(0)), { error: 'VIEW_DIFFERS' });
  const state = await store.load();
  assert.equal(state.session!.charge, 'never');
  assert.equal(state.session!.seed, null);
  assert.equal(Object.values(state.budgets)[0]!.kept, 0);
  for (const one of await Promise.all(others)) assert.deepEqual([...one.sum!], total([1, 2, 3]));
  assert.ok(![...party.aggregator.sessions[0]!.accepted.keys()].includes(`ann/${KINDS.upload}`));
});

test('an aggregator that repeats an update is left', async () => {
  const party = makeParty(PARAMETERS, { lost: 'ann', repeatedTo: 'ann' });
  const others = NAMES.slice(1).map((name, i) =>
    run(party, name, new MemoryStore(), vectorOf(i + 1)),
  );
  const left = run(party, 'ann', new MemoryStore(), vectorOf(0));
  await assert.rejects(left, { error: 'UNEXPECTED_MESSAGE', rule: 'R10-1' });
  for (const one of await Promise.all(others)) assert.deepEqual([...one.sum!], total([1, 2, 3]));
});

test('one that is lost after sharing is not in the sum, and learns the end', async () => {
  const party = makeParty(PARAMETERS, { lost: 'dora' });
  const all = await Promise.all(
    NAMES.map((name, i) => run(party, name, new MemoryStore(), vectorOf(i))),
  );
  for (const one of all.slice(0, 3)) {
    assert.deepEqual([...one.sum!], total([0, 1, 2]));
    assert.equal(one.survivors, 3);
  }
  assert.equal(all[3]!.error, 'SESSION_OVER');
  assert.equal(all[3]!.charge, 'returned');
});

test('a client that came too late takes part in the next session', async () => {
  const party = makeParty();
  let refused = 0;
  party.aggregator.fault = (name, method, moment) =>
    name === 'late' && method === 'AdvertiseKeys' && moment === 'before' && refused++ < 1
      ? 'ROSTER_TOO_LARGE'
      : null;
  const late = run(party, 'late', new MemoryStore(), vectorOf(0), { attempts: 2 });
  const first = NAMES.map((name, i) => run(party, name, new MemoryStore(), vectorOf(i)));
  for (const one of await Promise.all(first)) assert.equal(one.released, true);
  const second = NAMES.slice(1).map((name, i) =>
    run(party, `${name}-2`, new MemoryStore(), vectorOf(i + 1)),
  );
  for (const one of [await late, ...(await Promise.all(second))]) {
    assert.equal(one.sessionNumber, 2n);
    assert.deepEqual([...one.sum!], total([0, 1, 2, 3]));
  }
});

test('a vector that an exact task cannot take keeps its client away', async () => {
  for (const vector of [
    [1, 2, 3, 4],
    [1, 2, 3, 4, 0.5],
    [1, 2, 3, 4, 1 << 19],
    [1, 2, 3, 4, NaN],
  ]) {
    const party = makeParty();
    await assert.rejects(run(party, 'ann', new MemoryStore(), vector), { error: 'BAD_VECTOR' });
    assert.equal(party.aggregator.sessions[0]!.accepted.size, 0);
  }
});

test('the payload is compared with its hash and given to the vector', async () => {
  const payload = utf8('the weights of a model, say');
  const party = makeParty(PARAMETERS, { payload });
  const failed = new Set<string>();
  party.aggregator.fault = (name, method, moment) => {
    const key = `${name}/${method}/${moment}`;
    if (method !== 'FetchChunk' || failed.has(key)) return null;
    failed.add(key);
    return 'UNREACHABLE';
  };
  const all = await Promise.all(
    NAMES.map((name, i) =>
      new Client(settingsOf(party, name, new MemoryStore())).contribute((given) => {
        assert.deepEqual(given, payload);
        return vectorOf(i);
      }),
    ),
  );
  for (const one of all) assert.deepEqual([...one.sum!], total([0, 1, 2, 3]));
  const small = run(party, 'ann', new MemoryStore(), vectorOf(0), { maxPayloadBytes: 10 });
  await assert.rejects(small, { error: 'PAYLOAD_MISMATCH' });
});

test('a session without an end is left when its time is over', async () => {
  const party = makeParty();
  const store = new MemoryStore();
  const one = await run(party, 'ann', store, vectorOf(0));
  assert.equal(one.released, false);
  assert.equal(one.error, 'DEADLINE');
  assert.equal(one.charge, 'never');
  assert.equal((await store.load()).session!.seed, null);
});

test('a message that arrives after the end of a session is not taken', async () => {
  const party = makeParty();
  party.aggregator.fault = (name, method, moment) => {
    // Time passes while the roster is on its way to ann.
    const [session] = party.aggregator.sessions;
    const isNext = NAMES.every((each) => session?.accepted.has(`${each}/${KINDS.advert}`));
    if (name === 'ann' && method === 'GetUpdate' && moment === 'after' && isNext) {
      party.clock.ms = 1000 * Number(session!.offer.sessionEnd);
    }
    return null;
  };
  const store = new MemoryStore();
  const [ann] = await Promise.all(
    NAMES.map((name, i) => run(party, name, i === 0 ? store : new MemoryStore(), vectorOf(i))),
  );
  assert.equal(ann!.error, 'DEADLINE');
  assert.equal((await store.load()).session!.roster, null);
});

test('an open session is left when it does not fit stricter settings', async () => {
  for (const [change, error] of [
    [{ limits: { ...NOISY_LIMITS, maxEpsilon: 3.99 } }, 'POLICY_VIOLATION'],
    [{ policy: { minSurvivors: 7 } }, 'POLICY_VIOLATION'],
    [{ policy: { suites: [2] } }, 'POLICY_VIOLATION'],
  ] as const) {
    for (const commit of [1, 2, 3, 4]) {
      const party = makeParty(NOISY);
      const limits = NOISY_LIMITS;
      const store = new CrashingStore(commit, false);
      const others = EIGHT.slice(1).map((name) =>
        run(party, name, new MemoryStore(), new Float64Array(24), { limits }).catch(() => null),
      );
      const settings = { ...settingsOf(party, EIGHT[0]!, store), limits };
      await assert.rejects(new Client(settings).contribute(new Float64Array(24)), Crash);
      const before = (await store.load()).session!.state;
      const said: string[] = [];
      party.aggregator.fault = (name, method) => {
        if (name === EIGHT[0]) said.push(method);
        return null;
      };
      const again = new Client({ ...settings, ...change });
      await assert.rejects(again.contribute(new Float64Array(24)), { error });
      assert.deepEqual(said, []);
      const { session, budgets } = await store.load();
      assert.equal(session!.state, 'left');
      assert.equal(session!.seed, null);
      assert.equal(Object.values(budgets)[0]!.kept, before === 'bound' ? 1 : 0);
      await Promise.all(others);
    }
  }
});

test('another aggregator gets nothing of an open session', async () => {
  for (const [commit, bound] of [
    [2, false],
    [4, true],
  ] as const) {
    const party = makeParty();
    const store = new CrashingStore(commit, false);
    const others = NAMES.slice(1).map((name, i) =>
      run(party, name, new MemoryStore(), vectorOf(i + 1)).catch(() => null),
    );
    await assert.rejects(
      new Client(settingsOf(party, 'ann', store)).contribute(vectorOf(0)),
      Crash,
    );
    const calls: string[] = [];
    party.aggregator.name = 'sums-2';
    party.aggregator.fault = (name, method) => {
      if (name === 'ann') calls.push(method);
      return null;
    };
    const again = new Client({ ...settingsOf(party, 'ann', store), waitSeconds: 1 });
    if (bound) {
      await assert.rejects(again.contribute(vectorOf(0)), { error: 'UNREACHABLE' });
      assert.deepEqual(calls, []);
      assert.equal((await store.load()).session!.state, 'bound');
    } else {
      await assert.rejects(again.contribute(vectorOf(0)), SecAggError);
      assert.ok(calls.every((method) => method === 'GetOffer'));
      assert.equal((await store.load()).session!.state, 'left');
    }
    await Promise.all(others);
  }
});

test('a proxy that TLS may end in gets nothing of a session of profile 1', async () => {
  // R10.3-4, also of one that was begun on a direct way.
  const party = makeParty();
  const calls: string[] = [];
  party.aggregator.fault = (name, method) => {
    if (name === 'ann') calls.push(method);
    return null;
  };
  const proxied = (store: Store): Client => {
    const settings = settingsOf(party, 'ann', store);
    const { transport } = settings;
    const meet = async (): Promise<ProvenAggregator> => ({
      ...(await transport.meet()),
      proxied: true,
    });
    return new Client({ ...settings, transport: { ...transport, meet } });
  };
  const refused = { error: 'POLICY_VIOLATION', rule: 'R10.3-4' };
  await assert.rejects(proxied(new MemoryStore()).contribute(vectorOf(0)), refused);
  assert.deepEqual(new Set(calls), new Set(['GetOffer']));
  for (const resume of ['contribute', 'visit'] as const) {
    const store = new CrashingStore(1, false);
    await assert.rejects(
      new Client(settingsOf(party, 'ann', store)).contribute(vectorOf(0)),
      Crash,
    );
    calls.length = 0;
    await assert.rejects(proxied(store)[resume](vectorOf(0)), refused);
    assert.deepEqual(calls, []);
    assert.equal((await store.load()).session!.state, 'left');
  }
});

test('the vector of one task goes into no open session of another', async () => {
  const party = makeParty();
  const store = new CrashingStore(1, false);
  const ann = settingsOf(party, 'ann', store);
  await assert.rejects(new Client(ann).contribute(vectorOf(0)), Crash);
  const before = (await store.load()).session;
  for (const resume of ['contribute', 'visit'] as const) {
    const other = new Client({ ...ann, taskId: 'another' });
    await assert.rejects(other[resume](vectorOf(1)), { error: 'BAD_SETTINGS' });
  }
  assert.deepEqual((await store.load()).session, before);
});

// With noise: the block of accounting.json, for 6 to 8 clients and two sums of three sessions.

const PLANNED = readVectors('accounting')['rules']!.find((row) => row.noise_block !== undefined);
const NOISY: Parameters = {
  ...PARAMETERS,
  modulus: 2048n,
  dim: 32,
  minClients: 8,
  maxClients: 8,
  threshold: 5,
  minSurvivors: 6,
  maxDropouts: 2,
  maxLosses: 2,
  noiseLayers: 5,
  noiseBlock: utf8(PLANNED.noise_block),
};
const EIGHT = Array.from({ length: 8 }, (_, i) => `client-${i}`);
const NOISY_LIMITS = { requireNoise: true, maxEpsilon: 4, maxDelta: 1e-6 };

test('a sum with noise holds all vectors, and costs what the block says', async () => {
  const party = makeParty(NOISY);
  const vectors = EIGHT.map((_, i) =>
    new Float64Array(24).fill((i % 2 === 0 ? 1 : 0.9) / Math.sqrt(24)),
  );
  const stores = EIGHT.map((_, i) => (i === 0 ? new CrashingStore(4, false) : new MemoryStore()));
  const all = await Promise.all(
    EIGHT.map((name, i) => run(party, name, stores[i]!, vectors[i]!, { limits: NOISY_LIMITS })),
  );
  const exact = vectors.reduce((sum, vector) => sum + vector[0]!, 0);
  for (const one of all) {
    assert.equal(one.released, true);
    assert.equal(one.replaced, null);
    assert.deepEqual(one.sum, all[0]!.sum);
  }
  // Nothing is taken back here: the noise is at most n/5 times the counted variance, and
  // the mean of 24 entries has a standard deviation of at most
  // sqrt(8/5 · 28959)/80.4/sqrt(24) = 0.55. One chance in 10^8 that it is off by 3.2.
  const mean = Array.from(all[0]!.sum!, Number).reduce((a, b) => a + b, 0) / 24;
  assert.ok(Math.abs(mean - exact) < 3.2, `${mean} for ${exact}`);
});

test('zeros take the place of a vector that cannot be used, and it is charged', async () => {
  const party = makeParty(NOISY);
  const inputs: InputVector[] = EIGHT.map(() => new Float64Array(24));
  inputs[0] = new Float64Array(23);
  inputs[1] = new Float64Array(24).fill(NaN);
  inputs[2] = [1, 2, 3];
  const all = await Promise.all(
    EIGHT.map((name, i) =>
      run(party, name, new MemoryStore(), inputs[i]!, { limits: NOISY_LIMITS }),
    ),
  );
  all.forEach((one, i) => {
    assert.equal(one.released, true);
    assert.equal(one.replaced !== null, i < 3);
    assert.equal(one.charge, 'kept');
  });
});

test('zeros take the place of a vector that is not ready when it is due', async (context) => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const party = makeParty(NOISY);
  let isAsked = false;
  const never = (): Promise<InputVector> => {
    isAsked = true;
    return new Promise(() => undefined);
  };
  let isOver = false;
  const all = Promise.all(
    EIGHT.map((name, i) =>
      new Client({
        ...settingsOf(party, name, new MemoryStore()),
        limits: NOISY_LIMITS,
      }).contribute(i === 0 ? never : new Float64Array(24)),
    ),
  ).finally(() => (isOver = true));
  while (!isOver) {
    await new Promise((go) => setImmediate(go));
    if (isAsked) context.mock.timers.tick(700 * NOISY.deadlines[3]!);
  }
  const [late, ...others] = await all;
  assert.equal(late!.released, true);
  assert.match(late!.replaced!, /when it was due/);
  assert.ok(others.every((one) => one.released && one.replaced === null));
});

test('the budget ends, and what comes back is counted', async () => {
  // Of three sessions that the block counts, two charges come back at most.
  for (const [fate, kept] of [
    [2, [1, 2, 3]],
    [1, [0, 0, 1, 2, 3]],
  ] as const) {
    const party = makeParty(NOISY, { abortWithFate: fate });
    const stores = EIGHT.map(() => new MemoryStore());
    const session = () =>
      Promise.all(
        EIGHT.map((name, i) =>
          run(party, name, stores[i]!, new Float64Array(24), { limits: NOISY_LIMITS }),
        ),
      );
    for (const count of kept) {
      for (const one of await session()) assert.equal(one.error, 'U3_TOO_SMALL');
      const budgets = Object.values((await stores[0]!.load()).budgets);
      assert.equal(budgets[0]!.kept, count);
    }
    await assert.rejects(session(), { error: 'BUDGET_SPENT' });
  }
});

test('offers beyond the limits of a client are refused before anything is sent', async () => {
  const noisy: [Partial<ClientSettings>, string][] = [
    [{ limits: { ...NOISY_LIMITS, maxEpsilon: 3.99 } }, 'POLICY_VIOLATION'],
    [{ limits: { ...NOISY_LIMITS, maxDelta: 9e-7 } }, 'POLICY_VIOLATION'],
    [{ limits: { ...NOISY_LIMITS, minColluderFraction: 0.1 } }, 'POLICY_VIOLATION'],
    [{ policy: { profiles: ['malicious-server'] } }, 'POLICY_VIOLATION'],
    [{ policy: { suites: [2] } }, 'POLICY_VIOLATION'],
    [{ policy: { graphs: ['ring'] } }, 'POLICY_VIOLATION'],
    [{ policy: { minClients: 9 } }, 'POLICY_VIOLATION'],
    [{ policy: { maxClients: 7 } }, 'POLICY_VIOLATION'],
    [{ policy: { minSurvivors: 7 } }, 'POLICY_VIOLATION'],
    [{ policy: { maxDropouts: 1 } }, 'POLICY_VIOLATION'],
    [{ policy: { minColluders: 1 } }, 'POLICY_VIOLATION'],
    [{ policy: { maxDimension: 31 } }, 'POLICY_VIOLATION'],
    [{ policy: { maxModulusBits: 10 } }, 'POLICY_VIOLATION'],
    [{ taskId: 'another' }, 'POLICY_VIOLATION'],
  ];
  for (const [change, error] of noisy) {
    const party = makeParty(NOISY);
    const store = new MemoryStore();
    const settings = { ...settingsOf(party, 'client-0', store), limits: NOISY_LIMITS, ...change };
    await assert.rejects(new Client(settings).contribute(new Float64Array(24)), { error });
    assert.equal(party.aggregator.sessions[0]!.accepted.size, 0);
    assert.equal((await store.load()).session, null);
  }
  const exact = makeParty();
  const limits = { limits: NOISY_LIMITS };
  await assert.rejects(run(exact, 'ann', new MemoryStore(), vectorOf(0), limits), {
    error: 'POLICY_VIOLATION',
  });
  const half = makeParty({ ...PARAMETERS, threshold: 2 });
  await assert.rejects(run(half, 'ann', new MemoryStore(), vectorOf(0)), {
    error: 'POLICY_VIOLATION',
  });
  const { noise: _none, ...without } = settingsOf(makeParty(NOISY), 'client-0', new MemoryStore());
  await assert.rejects(new Client({ ...without, limits: NOISY_LIMITS }).contribute([]), {
    error: 'POLICY_VIOLATION',
  });
});

test('a claim that the noise does not keep is refused, unless its block was approved', async () => {
  const understated = PLANNED.noise_block.replace('"epsilon":4.0', '"epsilon":3.9');
  const other = PLANNED.noise_block.replace('mixture-simple', 'mixture-pld');
  for (const block of [understated, other]) {
    const party = makeParty({ ...NOISY, noiseBlock: utf8(block) });
    const refused = run(party, 'client-0', new MemoryStore(), new Float64Array(24), {
      limits: NOISY_LIMITS,
    });
    await assert.rejects(refused, { error: 'POLICY_VIOLATION' });
    const { sha256, toHex } = await import('../src/internals.js');
    const limits = { ...NOISY_LIMITS, approvedBlocks: [toHex(sha256(utf8(block)))] };
    const all = await Promise.all(
      EIGHT.map((name) => run(party, name, new MemoryStore(), new Float64Array(24), { limits })),
    );
    assert.ok(all.every((one) => one.released));
  }
});

test('other noise under the name of a task that was given to is refused', async () => {
  const clock = new TestClock();
  const stores = EIGHT.map(() => new MemoryStore());
  const first = { clock, aggregator: new TestAggregator({ parameters: NOISY }, clock) };
  await Promise.all(
    EIGHT.map((name, i) =>
      run(first, name, stores[i]!, new Float64Array(24), { limits: NOISY_LIMITS }),
    ),
  );
  const noiseBlock = utf8(PLANNED.noise_block.replace('"spare":1', '"spare":0'));
  const second = {
    clock,
    aggregator: new TestAggregator({ parameters: { ...NOISY, noiseBlock } }, clock),
  };
  second.aggregator.sessions.push(first.aggregator.sessions[0]!);
  const again = run(second, 'client-0', stores[0]!, new Float64Array(24), { limits: NOISY_LIMITS });
  await assert.rejects(again, { error: 'POLICY_VIOLATION' });
});

test('a limit that is left out is the default, and none is compared with nothing', async () => {
  const settings = settingsOf(makeParty(), 'ann', new MemoryStore());
  const limits = { requireNoise: undefined } as unknown as ClientSettings['limits'];
  await assert.rejects(new Client({ ...settings, limits: limits! }).contribute(vectorOf(0)), {
    error: 'POLICY_VIOLATION',
  });
  const odd: [string, Record<string, unknown>][] = [
    ['limits', { requireNoise: 0 }],
    ['limits', { requirenoise: true }],
    ['limits', { maxEpsilon: null }],
    ['limits', { maxDelta: NaN }],
    ['limits', { minColluderFraction: '1/10' }],
    ['limits', { minColluderFraction: -0.1 }],
    ['limits', { maxEpsilon: Infinity }],
    ['policy', { profiles: 'malicious-server' }],
    ['policy', { minClients: '100' }],
    ['policy', { toString: 1 }],
  ];
  for (const [name, value] of odd) {
    assert.throws(() => new Client({ ...settings, [name]: value }), TypeError);
  }
});
