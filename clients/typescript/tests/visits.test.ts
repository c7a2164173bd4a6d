/** Visits: one question, one answer, and a process that may end between two of them. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  Client,
  MemoryStore,
  SecAggError,
  VectorEncoder,
  type ClientState,
  type Contribution,
  type Store,
  type Visit,
  type VisitOptions,
} from '../src/internals.js';
import { PARAMETERS, TestAggregator, TestClock } from './aggregator.js';

const NAMES = ['ann', 'bob', 'Carl', 'dora'];
const vectorOf = (client: number): number[] =>
  Array.from({ length: PARAMETERS.dim }, (_, i) => 1000 * client - 77 * i);
const TOTAL = vectorOf(0).map((_, i) => NAMES.reduce((sum, _name, j) => sum + vectorOf(j)[i]!, 0));

class Crash extends Error {}

/** A store after whose n-th commit the process is gone. */
class CrashingStore implements Store {
  readonly inner = new MemoryStore();
  left = Infinity;
  load(): Promise<ClientState> {
    return this.inner.load();
  }
  async commit(state: ClientState): Promise<void> {
    await this.inner.commit(state);
    if (--this.left === 0) throw new Crash();
  }
  close(): Promise<void> {
    return Promise.resolve();
  }
}

class Phones {
  readonly clock = new TestClock();
  readonly aggregator = new TestAggregator({ parameters: PARAMETERS }, this.clock);
  readonly stores = new Map<string, CrashingStore>(
    NAMES.map((name) => [name, new CrashingStore()]),
  );

  options: VisitOptions = {};

  /** Visits as a process of its own: nothing but the store is kept. */
  visit(name: string): Promise<Visit> {
    const client = new Client({
      transport: this.aggregator.transport(name),
      store: this.stores.get(name)!,
      taskId: 'task',
      limits: { requireNoise: false, maxEpsilon: 4, maxDelta: 1e-6 },
      noise: new VectorEncoder(),
      clock: this.clock.read,
      sleep: this.clock.sleep,
    });
    return client.visit(vectorOf(NAMES.indexOf(name)), this.options);
  }

  async untilTheSum(name: string): Promise<Contribution> {
    for (let visits = 0; visits < 40; visits++) {
      try {
        const { contribution, comeBackMs } = await this.visit(name);
        if (contribution !== null) return contribution;
        await this.clock.sleep(Math.min(comeBackMs, 1000));
      } catch (error) {
        const cutOff = error instanceof SecAggError && error.error === 'UNREACHABLE';
        if (!cutOff && !(error instanceof Crash)) throw error;
      }
    }
    throw new Error(`${name} has no sum after 40 visits`);
  }
}

test('phones that visit now and then get the sum', async () => {
  const phones = new Phones();
  const all = await Promise.all(NAMES.map((name) => phones.untilTheSum(name)));
  for (const one of all) {
    assert.deepEqual([...one.sum!], TOTAL);
    assert.equal(one.charge, 'kept');
  }
});

test('a phone whose process ends after any commit says the same bytes again', async () => {
  for (let commit = 1; commit <= 6; commit++) {
    const phones = new Phones();
    phones.stores.get('ann')!.left = commit;
    const all = await Promise.all(NAMES.map((name) => phones.untilTheSum(name)));
    for (const one of all) assert.deepEqual([...one.sum!], TOTAL, `commit ${commit}`);
    assert.equal(phones.aggregator.sessions.length, 1);
  }
});

test('a phone that loses the network in each call continues with the next visit', async () => {
  const methods = ['GetOffer', 'AdvertiseKeys', 'ShareKeys', 'UploadChunk', 'RevealShares'];
  for (const method of [...methods, 'GetUpdate', 'FetchChunk']) {
    for (const moment of ['before', 'after'] as const) {
      const phones = new Phones();
      let calls = 0;
      phones.aggregator.fault = (name, called, when) =>
        name === 'ann' && called === method && when === moment && ++calls <= 1
          ? 'UNREACHABLE'
          : null;
      phones.options = { visitMs: 0 };
      const all = await Promise.all(NAMES.map((name) => phones.untilTheSum(name)));
      for (const one of all) assert.deepEqual([...one.sum!], TOTAL, `${method} ${moment}`);
      assert.ok(calls >= 1, `${method} was not cut off`);
    }
  }
});

test('a phone that has answered asks once, and sleeps until the round closes', async () => {
  const phones = new Phones();
  assert.equal((await phones.visit('ann')).sent, true);
  const asked: string[] = [];
  phones.aggregator.fault = (_name, method, moment) => {
    if (moment === 'before') asked.push(method);
    return null;
  };
  const visit = await phones.visit('ann');
  assert.deepEqual(asked, ['GetUpdate']);
  assert.equal(visit.sent, false);
  assert.ok(visit.comeBackMs >= 300_000 && visit.comeBackMs <= 315_000);
  // ShareKeys may open at once and lasts 600 s: no client may sleep through it.
  phones.aggregator.closesInMs = 604_800_000;
  assert.equal((await phones.visit('ann')).comeBackMs, 540_000);
});

test('a phone whose answer is not at the aggregator sends it again', async () => {
  const phones = new Phones();
  let lost = true;
  phones.aggregator.fault = (_name, method, moment) =>
    lost && method === 'AdvertiseKeys' && moment === 'before' ? 'SESSION_OVER' : null;
  assert.equal((await phones.visit('ann')).sent, false);
  lost = false;
  assert.equal((await phones.visit('ann')).sent, true);
});

test('a round that closes later than any round lasts is refused', async () => {
  const phones = new Phones();
  await phones.visit('ann');
  phones.aggregator.closesInMs = 604_800_001;
  await assert.rejects(phones.visit('ann'), { error: 'BAD_ENCODING' });
});

test('a second visit beside one that is under way is a mistake of the program', async () => {
  const phones = new Phones();
  const client = new Client({
    transport: phones.aggregator.transport('ann'),
    store: new MemoryStore(),
    taskId: 'task',
    limits: { requireNoise: false },
    clock: phones.clock.read,
    sleep: phones.clock.sleep,
  });
  const first = client.visit(vectorOf(0));
  await assert.rejects(client.visit(vectorOf(0)), TypeError);
  assert.equal((await first).sent, true);
});
