/**
 * Damaged messages of an aggregator: a client takes them, or leaves with a code of PROTOCOL 9.
 *
 * FUZZ_INPUTS says how many there are, by default a few; FUZZ_SEED from where they begin.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  AggregatorCalls,
  BLOBS,
  Client,
  decodeOffer,
  ERROR_CODES,
  fromHex,
  KINDS,
  MemoryStore,
  SecAggError,
  Session,
  toHex,
  VectorEncoder,
  type Bytes,
  type SessionRecord,
  type Transport,
} from '../src/internals.js';
import { decodeErrorDetail } from '../src/protobuf.js';
import { PARAMETERS, TestAggregator, TestClock } from './aggregator.js';
import { advance, isProfile3, kindOpening, optionsOf, SESSIONS } from './recorded.js';
import { hex, readVectors, type Row } from './vectors.js';

const INPUTS = Number(process.env['FUZZ_INPUTS'] ?? 4000);
const SEED = Number(process.env['FUZZ_SEED'] ?? 1);

/** Reproducible numbers below 2^32 (mulberry32); of a test, and of no secret. */
class Numbers {
  #state: number;

  constructor(name: string) {
    this.#state = SEED | 0;
    for (const character of name) this.#state = (this.#state * 31 + character.charCodeAt(0)) | 0;
  }

  below(limit: number): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % limit;
  }
}

const SPECIAL = [0, 1, 2, 0x7f, 0x80, 0xfe, 0xff];

/** One of the stock with one to three changes. */
function damaged(stock: readonly Uint8Array[], numbers: Numbers): Bytes {
  let data = Array.from(stock[numbers.below(stock.length)]!);
  for (let changes = 1 + numbers.below(3); changes > 0; changes--) {
    const at = numbers.below(data.length + 1);
    const other = stock[numbers.below(stock.length)]!;
    switch (numbers.below(8)) {
      case 0:
      case 1:
        if (at < data.length) data[at]! ^= 1 << numbers.below(8);
        break;
      case 2:
        if (at < data.length) data[at] = SPECIAL[numbers.below(SPECIAL.length)]!;
        break;
      case 3:
        data = data.slice(0, at);
        break;
      case 4:
        data.splice(at, 1 + numbers.below(40));
        break;
      case 5:
        data.splice(at, 0, ...data.slice(at, at + 1 + numbers.below(64)));
        break;
      case 6:
        data.splice(at, 0, SPECIAL[numbers.below(SPECIAL.length)]!);
        break;
      default:
        data = [...data.slice(0, at), ...other.slice(numbers.below(other.length + 1))];
    }
  }
  return Uint8Array.from(data);
}

/** What each run did, printed at its end. */
const count = { taken: 0, refused: 0 };

/** Lets pass what an aggregator can cause, and nothing else. */
function isRefusal(error: unknown, input: Uint8Array): void {
  if (!(error instanceof SecAggError)) {
    throw new Error(`a defect, for ${toHex(input)}`, { cause: error });
  }
  assert.equal(ERROR_CODES[error.error], error.code);
  assert.ok(/^[^\p{Cc}\p{Cs}]*$/u.test(error.message), 'a message that cannot be printed');
  count.refused++;
}

interface Scene {
  readonly name: string;
  readonly record: SessionRecord;
  readonly client: Row;
  readonly kinds: readonly number[];
  readonly stock: readonly Uint8Array[];
}

const ENDINGS = readVectors('restarts')['endings']!;

/** Clients of recorded sessions in all of their states, and what each waits for. */
async function scenes(): Promise<Scene[]> {
  const found: Scene[] = [];
  for (const recorded of SESSIONS.values()) {
    if (isProfile3(recorded)) continue;
    const client = recorded.clients.find((one: Row) => one.answer !== null);
    const messages: [number, string | null][] = [
      [3, recorded.roster],
      [4, client.delivery],
      [5, recorded.u3],
      [6, recorded.quorum],
    ];
    for (const [round, message] of messages) {
      if (message === null) continue;
      const session = await advance(recorded, client, round - 1);
      const kind = kindOpening(recorded, round);
      const offered = kind === KINDS.roster ? [client.neighbourhood] : [];
      const stock = [message, ...offered].filter((each) => each !== null).map(hex);
      const name = `${recorded.name}, round ${round}`;
      found.push({ name, record: session.record, client, kinds: [kind], stock });
      const ends = ENDINGS.map((row: Row) => hex(row.message));
      const kinds = [KINDS.release, KINDS.abort];
      found.push({ name: `${name}, end`, record: session.record, client, kinds, stock: ends });
    }
  }
  return found;
}

async function tell(scene: Scene, numbers: Numbers): Promise<void> {
  const all = Object.values(KINDS);
  // Mostly what the state waits for; sometimes anything else.
  const kinds = numbers.below(8) > 0 ? scene.kinds : all;
  const kind = kinds[numbers.below(kinds.length)]!;
  const input = damaged(scene.stock, numbers);
  const { session } = Session.resume(structuredClone(scene.record), optionsOf(scene.client));
  const before = session.state;
  try {
    await session.receive(kind, input);
  } catch (error) {
    isRefusal(error, input);
    assert.equal(session.state, 'left');
    assert.equal(session.record.seed, null);
    return;
  }
  count.taken++;
  // What was taken can be told again, and gives no second message.
  if (session.state !== before) assert.deepEqual((await session.receive(kind, input)).send, []);
}

/** The calls of a client, over an aggregator that damages what it answers. */
class Damaging implements Transport {
  readonly identity: string;
  input: Bytes = new Uint8Array();
  readonly #inner: Transport;
  readonly #numbers: Numbers;

  constructor(inner: Transport, numbers: Numbers) {
    this.#inner = inner;
    this.#numbers = numbers;
    this.identity = inner.identity;
  }

  meet(): ReturnType<Transport['meet']> {
    return this.#inner.meet();
  }

  async call(method: string, request: Bytes, timeoutMs: number): Promise<Bytes> {
    const answer = await this.#inner.call(method, request, timeoutMs);
    if (this.#numbers.below(3) > 0) return answer;
    this.input = damaged([answer], this.#numbers);
    return this.input;
  }

  close(): void {
    this.#inner.close();
  }
}

/** One client beside honest ones: its visits see damaged answers of every call. */
async function visits(numbers: Numbers): Promise<number> {
  const clock = new TestClock();
  const aggregator = new TestAggregator({ parameters: PARAMETERS }, clock);
  const names = ['ann', 'bob', 'Carl', 'dora'];
  const stores = names.map(() => new MemoryStore());
  const damaging = new Damaging(aggregator.transport('ann'), numbers);
  let asked = 0;
  for (let turn = 0; turn < 12; turn++) {
    for (const [i, name] of names.entries()) {
      const client = new Client({
        transport: i === 0 ? damaging : aggregator.transport(name),
        store: stores[i]!,
        taskId: 'task',
        limits: { requireNoise: false },
        noise: new VectorEncoder(),
        clock: clock.read,
        sleep: clock.sleep,
      });
      if (i === 0) asked++;
      try {
        await client.visit(new Array<number>(PARAMETERS.dim).fill(i), { visitMs: 0 });
      } catch (error) {
        isRefusal(error, damaging.input);
      }
    }
  }
  return asked;
}

/** Answers of single calls, which carry no message of a session. */
async function answers(numbers: Numbers): Promise<void> {
  const stock = [
    fromHex('0a20' + '11'.repeat(32)),
    fromHex('12060880c6868f01'),
    fromHex('0a0808038201021000'),
    fromHex('0a0408071001'),
    fromHex('0805120b616e206572726f72206f661a026e6f'),
    fromHex(SESSIONS.get('complete').offer),
  ];
  const input = damaged(stock, numbers);
  const calls = new AggregatorCalls({
    identity: 'ann',
    meet: () => Promise.resolve({ aggregator: 'a', trustDomain: 't' }),
    call: () => Promise.resolve(input),
    close: () => undefined,
  });
  const sid = new Uint8Array(32);
  const made = [
    () => calls.getOffer('task', 0n, 0),
    () => calls.getUpdate(sid, 3),
    () => calls.getUploadStatus(sid, sid),
    () => calls.uploadChunk(sid, sid, sid, sid, 0),
    () => calls.fetch(sid, BLOBS.sum, 32, sid),
    () => Promise.resolve(decodeOffer(input)),
  ][numbers.below(6)]!;
  try {
    await made();
    count.taken++;
  } catch (error) {
    isRefusal(error, input);
  }
  try {
    decodeErrorDetail(input);
  } catch (error) {
    // The transports take it for an answer that no aggregator has written.
    assert.ok(error instanceof SyntaxError, `a defect, for ${toHex(input)}`);
  }
}

test('damaged messages end a session by a code, or not at all', async (context) => {
  const all = await scenes();
  const numbers = new Numbers('messages');
  let held = 0;
  // Dear ones, with agreements over a roster or signing keys of one's own, are fewer.
  const kinds = ({ record, client, kinds: [kind] }: Scene): string =>
    record.roster !== null
      ? 'in a roster'
      : client.identity_seed !== ''
        ? 'signing'
        : kind === KINDS.roster
          ? 'roster'
          : 'ending';
  const groups = new Map<string, Scene[]>();
  for (const scene of all) groups.set(kinds(scene), [...(groups.get(kinds(scene)) ?? []), scene]);
  const told: Record<string, number> = {};
  for (let input = 0; input < INPUTS; input++) {
    const kind = [
      [200, 'in a roster'],
      [100, 'signing'],
      [5, 'roster'],
      [1, 'ending'],
    ].find(([every]) => input % Number(every) === 0)![1] as string;
    told[kind] = (told[kind] ?? 0) + 1;
    const from = groups.get(kind)!;
    await tell(from[numbers.below(from.length)]!, numbers);
    if (input === INPUTS >> 1) held = process.memoryUsage().heapUsed;
    if (input % 50_000 === 49_999) process.stderr.write(`${input + 1} messages\n`);
  }
  context.diagnostic(
    `${INPUTS} messages in ${all.length} states: ${JSON.stringify({ ...count, ...told })}`,
  );
  assert.ok(count.taken > 0 && count.refused > 0);
  // What the runtime has not collected yet, and no part of each input.
  assert.ok(process.memoryUsage().heapUsed < held + (200 << 20));
});

test('damaged answers of calls are refused, or mean what they say', async (context) => {
  const numbers = new Numbers('answers');
  for (let input = 0; input < INPUTS / 4; input++) await answers(numbers);
  context.diagnostic(`${Math.ceil(INPUTS / 4)} answers: ${JSON.stringify(count)}`);
});

test('a client beside damaged answers visits on', async (context) => {
  const numbers = new Numbers('visits');
  let asked = 0;
  while (asked < INPUTS / 200) asked += await visits(numbers);
  context.diagnostic(`${asked} visits: ${JSON.stringify(count)}`);
});
