/** sessions.json, refusals.json and restarts.json: the state machine against recorded sessions. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  checkOfferRules,
  checkPayload,
  checkRevocationList,
  blob,
  checkSetup,
  checkStoredOffer,
  concat,
  decodeAbort,
  decodeOffer,
  decodeRelease,
  decodeSet,
  DEFAULT_LIMITS,
  DEFAULT_POLICY,
  encodeOffer,
  encodeRelease,
  encodeRoster,
  ERROR_CODES,
  equal,
  KINDS,
  noiseCertificate,
  openingContext,
  pack,
  readSessionNoise,
  Reader,
  readTrust,
  SeedSigner,
  sha256,
  shareNoise,
  Session,
  toHex,
  unpack,
  writeReceipt,
  zeroResidues,
  packedSize,
  type Bytes,
  type Step,
  type Trust,
} from '../src/internals.js';
import { decodeErrorDetail } from '../src/protobuf.js';
import {
  advance,
  begin,
  clientOf,
  inputOf,
  isProfile3,
  kindOpening,
  optionsOf,
  SESSIONS,
} from './recorded.js';
import { eachRow, hex, readVectors, refusedWith, type Row } from './vectors.js';

const sent = (step: Step): [number, string][] =>
  step.send.map(({ kind, message }) => [kind, toHex(message)]);

async function play(recorded: Row, client: Row, roster: string): Promise<number> {
  if (client.advert === null) return 0;
  const { session, step } = await begin(recorded, client);
  const contexts = openingContext(session.offer);
  assert.equal(toHex(contexts.configurationHash), recorded.cfg_hash);
  assert.equal(toHex(session.sid), recorded.sid);
  assert.equal(toHex(contexts.ctx0), recorded.contexts[0]);
  assert.deepEqual(sent(step), [[KINDS.advert, client.advert]]);
  let steps = 1;
  const expect = async (kind: number, message: string, reply: number, expected: string) => {
    assert.deepEqual(sent(await session.receive(kind, hex(message))), [[reply, expected]]);
    steps++;
  };
  if (client.bundles === null) return steps;
  await expect(KINDS.roster, roster, KINDS.bundles, client.bundles);
  if (client.delivery === null || client.upload === null) return steps;
  const request = await session.receive(KINDS.delivery, hex(client.delivery));
  assert.deepEqual(sent(request), []);
  assert.equal(toHex(request.needsInput!.view), recorded.view);
  const upload = await session.bind(inputOf(recorded, client));
  assert.deepEqual(sent(upload), [[KINDS.upload, client.upload]]);
  steps++;
  if (client.answer === null && client.signature === null) return steps;
  if (recorded.quorum === null) {
    if (client.index === recorded.lying) return steps;
    await expect(KINDS.survivors, recorded.u3, KINDS.shares, client.answer);
  } else {
    await expect(KINDS.survivors, recorded.u3, KINDS.consistency, client.signature);
    if (client.answer === null) return steps;
    await expect(KINDS.quorum, recorded.quorum, KINDS.shares, client.answer);
  }
  assert.equal(session.record.seed, null);
  return steps;
}

let played = 0;
eachRow(
  'sessions',
  'sessions',
  7,
  async (recorded) => {
    for (const client of recorded.clients) {
      played += await play(recorded, client, recorded.roster);
      if (client.neighbourhood !== null) {
        played += await play(recorded, client, client.neighbourhood);
      }
    }
    const { modulus, dim } = decodeOffer(hex(recorded.offer)).parameters;
    const sum = unpack(hex(recorded.packed_sum), modulus, dim);
    assert.deepEqual([...sum].map(String), recorded.sum);
    assert.equal(toHex(pack(sum, modulus)), recorded.packed_sum);
    assert.equal(recorded.packed_sum.length, 2 * packedSize(modulus, dim));
  },
  { skip: isProfile3, skipped: 2 },
);

test('every client of every session sent every message that was recorded', () => {
  const messages = [...SESSIONS.values()]
    .filter((session) => !isProfile3(session))
    .flatMap((session) =>
      session.clients.map((client: Row) => {
        const own = ['advert', 'bundles', 'upload', 'signature', 'answer'].filter(
          (key) => client[key] !== null && !(key === 'answer' && client.index === session.lying),
        ).length;
        return client.neighbourhood === null ? own : 2 * own;
      }),
    );
  assert.equal(
    played,
    messages.reduce((a: number, b: number) => a + b, 0),
  );
  assert.ok(played > 200, `${played} messages`);
});

eachRow('refusals', 'offers', 77, async (row) => {
  await refusedWith(row.code, () => checkOfferRules(decodeOffer(hex(row.offer))));
});

eachRow('refusals', 'payloads', 2, async (row) => {
  const check = () => checkPayload(hex(row.payload_hash), hex(row.payload));
  if (row.success) check();
  else await refusedWith(row.code, check);
});

const trustOf = (bytes: string | null): Trust | null =>
  bytes === null ? null : readTrust(new Reader(hex(bytes), 'the trust'));

eachRow('refusals', 'setups', 11, async (row) => {
  const check = () =>
    checkSetup(decodeOffer(hex(SESSIONS.get(row.session).offer)), {
      aggregator: row.aggregator,
      trustDomain: row.trust_domain,
      now: BigInt(row.now),
      lastSession: 0n,
      enrolmentKey: hex(row.enrolment_key),
      seen: trustOf(row.seen),
    });
  if (row.success) check();
  else await refusedWith(row.code, check);
});

eachRow(
  'refusals',
  'client',
  174,
  async (row) => {
    const recorded = SESSIONS.get(row.session);
    const session = await advance(recorded, clientOf(recorded, row.client), row.after);
    await refusedWith(row.code, () =>
      session.receive(kindOpening(recorded, row.round), hex(row.message)),
    );
    assert.equal(session.state, 'left');
    assert.equal(session.record.seed, null);
    assert.equal(session.record.upload, null);
    assert.equal(session.record.violation, row.code);
    // What is left sends nothing, now or after a restart.
    assert.deepEqual(await session.receive(KINDS.survivors, hex(recorded.u3)), {
      send: [],
      needsInput: null,
      ended: null,
    });
    const again = Session.resume(session.record, optionsOf(clientOf(recorded, row.client)));
    assert.deepEqual(again.step.send, []);
  },
  { skip: isProfile3, skipped: 29 },
);

eachRow('refusals', 'endings', 30, async (row) => {
  const recorded = SESSIONS.get(row.session);
  const session = await advance(recorded, clientOf(recorded, row.client), row.after);
  const before = session.inputBound;
  await refusedWith(row.code, () => session.receive(row.kind, hex(row.message)));
  assert.equal(session.state, 'left');
  assert.equal(session.record.charge, before ? 'kept' : 'never');
});

eachRow('refusals', 'complaints', 8, async (row) => {
  const recorded = SESSIONS.get(row.session);
  const client = clientOf(recorded, row.client);
  const session = await advance(recorded, client, 3);
  const step = await session.receive(KINDS.delivery, hex(row.delivery));
  assert.deepEqual(
    sent(step),
    row.complaints.map((complaint: string) => [KINDS.complaint, complaint]),
  );
  // They are said again after a restart, until they are acknowledged.
  const again = Session.resume(session.record, optionsOf(client));
  assert.deepEqual(sent(again.step), sent(step));
  for (const { message } of step.send) {
    again.session.complaintAcknowledged(new Reader(message.slice(2), 'a complaint').u32());
  }
  assert.deepEqual(Session.resume(again.session.record, optionsOf(client)).step.send, []);
  await again.session.bind(inputOf(recorded, client));
  const answer = await again.session.receive(KINDS.survivors, hex(row.u3));
  assert.deepEqual(sent(answer), [[KINDS.shares, row.answer]]);
});

eachRow(
  'restarts',
  'restarts',
  14,
  async (row) => {
    const recorded = SESSIONS.get(row.session);
    const client = clientOf(recorded, row.client);
    const options = optionsOf(client);
    const kept = structuredClone((await advance(recorded, client, row.after)).record);
    const { session, step } = Session.resume(kept, options);
    assert.deepEqual(
      step.send.map(({ message }) => toHex(message)),
      [row.sends],
    );
    if (row.again === undefined) return;
    const kind = kindOpening(recorded, row.after);
    assert.deepEqual((await session.receive(kind, hex(row.again))).send, []);
    await refusedWith(row.code, () => session.receive(kind, hex(row.other)));
  },
  { skip: isProfile3, skipped: 6 },
);

eachRow('restarts', 'numbers', 7, async (row) => {
  const offer = decodeOffer(hex(SESSIONS.get('complete').offer));
  const seen: bigint[] = row.seen.map(BigInt);
  const check = () =>
    checkSetup(
      { ...offer, sessionNumber: BigInt(row.offered) },
      {
        aggregator: offer.aggregator,
        trustDomain: 'example.org',
        now: offer.sessionEnd - 100n,
        lastSession: seen.reduce((a, b) => (a > b ? a : b), 0n),
        enrolmentKey: null,
        seen: null,
      },
    );
  if (row.success) check();
  else await refusedWith(row.code, check);
});

test('a list that is too old for the settings of today ends a stored session', () => {
  const row = SESSIONS.get('signed');
  const offer = decodeOffer(hex(row.offer));
  const list = row.revocations === '' ? null : hex(row.revocations);
  const { trust, deadlines } = offer.parameters;
  // R5.0-2: it cannot have been joined earlier.
  const lasts = deadlines.reduce((sum, seconds) => sum + seconds, 3600 + deadlines[3]!);
  const made = checkRevocationList(trust!, list)!.madeAt;
  const age = (Number(offer.sessionEnd - made) - lasts) / 86400;
  const check = (maxRevocationDays: number | null): unknown =>
    checkStoredOffer(hex(row.offer), list, {
      aggregator: offer.aggregator,
      trustDomain: trust!.trustDomain,
      enrolmentKey: trust!.enrolmentKey,
      seen: null,
      policy: { ...DEFAULT_POLICY, profiles: ['malicious-server'], maxRevocationDays },
      limits: { ...DEFAULT_LIMITS, requireNoise: false },
      noise: null,
    });
  for (const days of [null, age + 0.001]) check(days);
  assert.throws(() => check(age - 0.001), /older than/);
});

eachRow('restarts', 'endings', 15, async (row) => {
  const read = () =>
    row.kind === 8 ? decodeRelease(hex(row.message)) : decodeAbort(hex(row.message));
  if (row.success === false) {
    await refusedWith(row.code, read);
    return;
  }
  const ending = read();
  assert.equal(ending.fate, row.fate);
  if (ending.kind === 'abort') assert.equal(ERROR_CODES[ending.code], row.code);
  else assert.equal(ending.survivors, row.survivors);
});

test('no error makes a client wait longer than its timers can', () => {
  const years = Uint8Array.of(8, 60, 16, 2, 40, 255, 255, 255, 255, 255, 255, 127);
  assert.equal(decodeErrorDetail(years)!.retryAfterMs, 3_600_000);
});

eachRow('restarts', 'errors', 13, (row) => {
  const detail = decodeErrorDetail(hex(row.detail));
  if (row.success === false) {
    assert.equal(detail, undefined);
    return;
  }
  assert.equal(ERROR_CODES[detail!.error], row.read_as);
  assert.equal(detail!.fault, row.read_fault ?? row.fault);
  assert.equal(detail!.message, row.message ?? '');
  assert.equal(detail!.nextStep, row.next_step ?? '');
  assert.equal(detail!.retryAfterMs, row.retry_after_ms);
  assert.equal(detail!.sender, row.sender ?? '');
  assert.equal(detail!.alive, row.alive ?? 0);
  assert.equal(detail!.needed, row.needed ?? 0);
  assert.equal(
    detail!.nextOffset,
    row.next_offset === undefined ? undefined : BigInt(row.next_offset),
  );
});

test('every list of these files was read, but for those of servers', () => {
  const keys = (file: string): string[] =>
    Object.entries(readVectors(file))
      .filter(([, rows]) => Array.isArray(rows))
      .map(([key]) => key);
  assert.deepEqual(keys('sessions'), ['sessions']);
  // A server's: server, closings, noise_reveals.
  assert.deepEqual(keys('refusals'), [
    'offers',
    'payloads',
    'setups',
    'client',
    'endings',
    'server',
    'complaints',
    'closings',
  ]);
  assert.deepEqual(keys('restarts'), ['restarts', 'numbers', 'endings', 'noise_reveals', 'errors']);
});

test('a session is used by one call at a time', async () => {
  const recorded = SESSIONS.get('complete');
  const client = clientOf(recorded, 'bob');
  const { session } = await begin(recorded, client);
  const first = session.receive(KINDS.roster, hex(recorded.roster));
  await assert.rejects(session.receive(KINDS.roster, hex(recorded.roster)), TypeError);
  await first;
  assert.equal(session.state, 'shared');
});

test('an input is bound once', async () => {
  const recorded = SESSIONS.get('complete');
  const client = clientOf(recorded, 'bob');
  const session = await advance(recorded, client, 4);
  await assert.rejects(session.bind(inputOf(recorded, client)), TypeError);
  assert.equal(session.state, 'bound');
});

test('a charge comes back for the fates of the table alone', async () => {
  const abort = (fate: number): Bytes => hex(`0${fate}000e00000000`);
  for (const [name, after, fate, charge] of [
    ['complete', 3, 0, 'never'],
    ['complete', 4, 0, 'returned'],
    ['complete', 4, 1, 'returned'],
    ['complete', 4, 2, 'kept'],
    ['complete', 6, 2, 'kept'],
    ['signed', 4, 0, 'kept'],
    ['signed', 4, 1, 'kept'],
    ['signed', 5, 2, 'kept'],
  ] as const) {
    const recorded = SESSIONS.get(name);
    const client = recorded.clients.find((one: Row) => one.answer !== null);
    const session = await advance(recorded, client, after);
    const step = await session.receive(KINDS.abort, abort(fate));
    assert.equal(step.ended?.kind, 'abort');
    assert.equal(session.record.charge, charge, `${name} after ${after}, fate ${fate}`);
    assert.equal(session.record.seed, null);
  }
  const recorded = SESSIONS.get('complete');
  const left = await advance(recorded, clientOf(recorded, 'bob'), 4);
  left.leave(ERROR_CODES.DEADLINE);
  assert.equal(left.record.charge, 'kept');
});

test('own secrets differ by seed, session and roster', async () => {
  const { deriveSecrets } = await import('../src/internals.js');
  const at = (seed: number, sid: number) =>
    deriveSecrets(new Uint8Array(32).fill(seed), new Uint8Array(32).fill(sid), 3, 2);
  const all = [at(1, 1), at(1, 2), at(2, 1)].flatMap((secrets) => [
    secrets.channelKey,
    secrets.maskKey,
    secrets.selfMaskSeed,
    ...secrets.noiseSeeds,
    secrets.noiseKey(new Uint8Array(32)),
    secrets.noiseKey(new Uint8Array(32).fill(1)),
  ]);
  all.forEach((one, i) => assert.ok(!all.slice(i + 1).some((other) => equal(one, other))));
  const ctx1 = [new Uint8Array(32), new Uint8Array(32).fill(1)] as const;
  assert.notDeepEqual(at(1, 1).coefficients(ctx1[0]), at(1, 1).coefficients(ctx1[1]));
  assert.deepEqual(at(1, 1).coefficients(ctx1[0]), at(1, 1).coefficients(ctx1[0]));
  const { key, seed } = at(1, 1).coefficients(ctx1[0]);
  assert.equal(key.length, 2);
  assert.notDeepEqual(key, seed);
});

test('receipts are those that were recorded of clients', async () => {
  const written = new Set<string>();
  for (const recorded of SESSIONS.values()) {
    if (isProfile3(recorded)) continue;
    for (const client of recorded.clients) {
      if (client.answer === null || client.index === recorded.lying) continue;
      const session = await advance(recorded, client, 6);
      if (session.state !== 'answered') await session.receive(KINDS.survivors, hex(recorded.u3));
      const packed = hex(recorded.packed_sum);
      const release = encodeRelease({
        kind: 'release',
        fate: 2,
        sumHash: sha256(packed),
        size: BigInt(packed.length),
        survivors: decodeSet(session.rosterSize, hex(recorded.u3), 'U3').length,
        keptUntil: 0n,
      });
      await session.receive(KINDS.release, release);
      written.add(toHex(writeReceipt(session.record, session.rosterTop)));
    }
  }
  const receiptOf = (name: string): string =>
    readVectors('receipts')['receipts']!.find((row: Row) => row.name === name).receipt;
  assert.ok(written.has(receiptOf("a client's")));
  // That of a session which is not among the recorded ones, at least by its certificate.
  const reader = new Reader(hex(receiptOf('what a client knows of noise')), 'a receipt');
  reader.take(17);
  const { block } = readSessionNoise(decodeOffer(reader.blob()), null)!;
  const certificate = noiseCertificate(block.noise, shareNoise(block.noise, 6), 5, null);
  assert.ok(receiptOf('what a client knows of noise').includes(toHex(certificate)));
});

test('losses before sharing count, too', async () => {
  const parameters = {
    ...decodeOffer(hex(SESSIONS.get('complete').offer)).parameters,
    minClients: 4,
    maxClients: 4,
    threshold: 2,
    minSurvivors: 2,
    maxDropouts: 1,
    maxLosses: 1,
    colluders: 0,
  };
  const offer = encodeOffer({
    ...decodeOffer(hex(SESSIONS.get('complete').offer)),
    parameters,
  });
  const begun = await Promise.all(
    ['a', 'b', 'c', 'd'].map((identity, i) =>
      Session.begin(
        offer,
        {
          identity,
          credential: null,
          revocations: null,
          seed: new Uint8Array(32).fill(i + 1),
        },
        { signer: null, noise: null },
      ),
    ),
  );
  const roster = encodeRoster(
    begun.map(({ step }) => step.send[0]!.message),
    new Uint8Array(),
  );
  const bundles = await Promise.all(
    begun.map(
      async ({ session }) => (await session.receive(KINDS.roster, roster)).send[0]!.message,
    ),
  );
  // The last one is lost before it shares; then one more, which the dropouts allow.
  const delivery = concat(
    blob(hex('07')),
    blob(concat(...[1, 2].map((i) => bundles[i]!.slice(0, 96)))),
  );
  const { session } = begun[0]!;
  await session.receive(KINDS.delivery, delivery);
  await session.bind(zeroResidues(parameters.modulus, parameters.dim));
  const kept = structuredClone(session.record);
  await refusedWith(ERROR_CODES.TOO_MANY_DROPOUTS, () =>
    session.receive(KINDS.survivors, hex('03')),
  );
  const again = Session.resume(kept, { signer: null, noise: null }).session;
  assert.equal((await again.receive(KINDS.survivors, hex('07'))).send[0]!.kind, KINDS.shares);
});

test('a session is continued with the identity key that it was begun with', async () => {
  const recorded = SESSIONS.get('signed-by-all');
  const client = recorded.clients[0];
  for (const after of [1, 3, 4]) {
    const { record } = await advance(recorded, client, after);
    for (const signer of [null, SeedSigner.generate().signer]) {
      await refusedWith(ERROR_CODES.BAD_CREDENTIAL, () =>
        Session.resume(record, { ...optionsOf(client), signer }),
      );
    }
    assert.equal(Session.resume(record, optionsOf(client)).session.state, record.state);
  }
});
