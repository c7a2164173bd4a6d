/**
 * An aggregator of one profile-1 session after the other, in memory, for tests of clients.
 *
 * It keeps what was accepted from each client, and throws where one says something else in
 * the same round: a client that restarts must send the same bytes or none.
 */

import assert from 'node:assert/strict';

import {
  addMask,
  agree,
  BLOBS,
  blob,
  compare,
  concat,
  decodeAdvert,
  decodeSet,
  decodeShare,
  encodeOffer,
  encodeRelease,
  encodeRoster,
  encodeSet,
  KINDS,
  openingContext,
  openMaskStream,
  pack,
  packedSize,
  pairMaskKey,
  rebuildSecret,
  rosterContext,
  rosterLeaf,
  rosterNode,
  SecAggError,
  selfMaskKey,
  sha256,
  sharingContext,
  text,
  toHex,
  treeTop,
  u16,
  u8,
  unpack,
  utf8,
  viewOf,
  FieldReader,
  writeFields,
  zeroResidues,
  layersTakenBack,
  noiseContext,
  readSessionNoise,
  shareNoise,
  VectorEncoder,
  type Bytes,
  type ErrorName,
  type FieldValue,
  type Offer,
  type Parameters,
  type Residues,
  type Transport,
} from '../src/internals.js';

export const NOW = 1_800_000_000;

/** Time that passes when clients wait, and only then. */
export class TestClock {
  ms = 1000 * NOW;
  readonly read = (): number => this.ms;
  readonly sleep = async (ms: number): Promise<void> => {
    this.ms += ms;
    await new Promise((go) => setImmediate(go));
  };
}

export const PARAMETERS: Parameters = {
  version: 1,
  profile: 1,
  suite: 1,
  modulus: 1n << 20n,
  dim: 5,
  minClients: 4,
  maxClients: 4,
  threshold: 3,
  degree: 0,
  minSurvivors: 3,
  maxDropouts: 1,
  maxLosses: 1,
  colluders: 0,
  noiseLayers: 0,
  noiseBlock: new Uint8Array(),
  deadlines: [600, 0, 600, 600, 0, 600],
  trust: null,
  graphBits: 0,
  inCap: 0,
  ownQuorum: 0,
};

interface Settings {
  readonly parameters: Parameters;
  readonly payload?: Bytes;
  readonly noiseTerms?: Bytes;
  readonly aggregator?: string;
  /** Ends a session in place of announcing U3, with this fate. */
  readonly abortWithFate?: number;
  /** Leaves a client out of U3, as if it had been lost. */
  readonly lost?: string;
  /** Tells a client the roster again and again. */
  readonly repeatedTo?: string;
}

const UPLOAD_PIECE = 7;

class TestSession {
  readonly offer: Offer;
  readonly bytes: Bytes;
  readonly sid: Bytes;
  readonly accepted = new Map<string, Bytes>();
  readonly #settings: Settings;
  readonly #adverts = new Map<string, Bytes>();
  readonly #bundles = new Map<string, Bytes>();
  readonly #uploads = new Map<string, Bytes>();
  readonly #answers = new Map<string, Bytes>();
  readonly #encoder = new VectorEncoder();
  #order: string[] = [];
  #roster: Bytes | null = null;
  #u2: string[] | null = null;
  #u3: string[] | null = null;
  #ctx2: Bytes = new Uint8Array();
  #ending: { kind: number; message: Bytes } | null = null;
  #sum: Bytes = new Uint8Array();

  constructor(settings: Settings, number: bigint, now: number) {
    this.#settings = settings;
    const { parameters, payload } = settings;
    const rounds = parameters.deadlines.reduce((a, b) => a + b, 0) + parameters.deadlines[3]!;
    this.offer = {
      aggregator: settings.aggregator ?? 'sums-1',
      taskId: 'task',
      sessionNumber: number,
      serverNonce: new Uint8Array(32).fill(Number(number)),
      sessionEnd: BigInt(now + rounds),
      payloadHash: payload === undefined ? new Uint8Array() : sha256(payload),
      noiseTerms: settings.noiseTerms ?? new Uint8Array(),
      parameters,
    };
    this.bytes = encodeOffer(this.offer);
    this.sid = openingContext(this.offer).sid;
  }

  get ended(): boolean {
    return this.#ending !== null;
  }

  take(name: string, kind: number, message: Bytes): void {
    const key = `${name}/${kind}`;
    const before = this.accepted.get(key);
    // R5-8, and the point of these tests: never a second, different message.
    if (before !== undefined) assert.equal(toHex(message), toHex(before), `${key} twice`);
    this.accepted.set(key, message);
    if (before !== undefined) return;
    const round = {
      [KINDS.advert]: this.#adverts,
      [KINDS.bundles]: this.#bundles,
      [KINDS.upload]: this.#uploads,
      [KINDS.shares]: this.#answers,
    }[kind]!;
    round.set(name, message);
  }

  #indices(names: readonly string[]): number[] {
    return names.map((name) => this.#order.indexOf(name));
  }

  #advance(): void {
    const { parameters: p } = this.#settings;
    if (this.#roster === null && this.#adverts.size === p.maxClients) {
      this.#order = [...this.#adverts.keys()].sort((a, b) => compare(utf8(a), utf8(b)));
      const adverts = this.#order.map((name) => this.#adverts.get(name)!);
      this.#roster = encodeRoster(adverts, new Uint8Array());
    }
    if (this.#u2 === null && this.#roster !== null && this.#bundles.size === p.maxClients) {
      this.#u2 = this.#order;
      const { ctx0 } = openingContext(this.offer);
      const leaves = this.#order.map((name, i) =>
        rosterLeaf(p.suite, ctx0, i, decodeAdvert(this.#adverts.get(name)!)),
      );
      const top = treeTop(leaves, rosterNode(p.suite));
      const ctx1 = rosterContext(p.suite, ctx0, leaves.length, top, new Uint8Array());
      const noise = readSessionNoise(this.offer, null);
      let context: Bytes = new Uint8Array();
      if (noise !== null) {
        const share = shareNoise(noise.block.noise, leaves.length);
        context = noiseContext(p.suite, share, this.#encoder.tables(noise, share));
      }
      const u2 = encodeSet(leaves.length, this.#indices(this.#u2));
      this.#ctx2 = sharingContext(p.suite, ctx1, new Uint8Array(), u2, context);
    }
    const lost = this.#settings.lost;
    const due = this.#order.filter((name) => name !== lost);
    if (this.#u3 === null && this.#u2 !== null && due.every((name) => this.#uploads.has(name))) {
      const fate = this.#settings.abortWithFate;
      if (fate !== undefined) {
        this.#ending = { kind: KINDS.abort, message: concat(u8(fate), u16(14), text('as told')) };
      }
      this.#u3 = due;
    }
  }

  /** Ends the session once all answers are in. */
  async close(): Promise<void> {
    this.#advance();
    if (this.#ending !== null || this.#u3 === null || this.#answers.size < this.#u3.length) return;
    const { parameters: p } = this.#settings;
    const size = this.#order.length;
    const sum = zeroResidues(p.modulus, p.dim);
    for (const name of this.#u3) {
      addResidues(sum, unpack(this.#uploads.get(name)!, p.modulus, p.dim), p.modulus);
    }
    const shares = this.#order.map(() => new Map<number, number[]>());
    const seeds = new Map<number, Bytes[]>();
    for (const name of this.#u3) {
      const answer = this.#answers.get(name)!;
      const bitmap = Math.ceil(size / 8);
      assert.deepEqual(decodeSet(size, answer.subarray(0, bitmap), 'absences'), []);
      const holder = this.#order.indexOf(name);
      shares.forEach((of, dealer) => {
        const at = bitmap + 34 * dealer;
        of.set(holder + 1, decodeShare(answer.subarray(at, at + 34)));
      });
      const given: Bytes[] = [];
      for (let at = bitmap + 34 * size; at < answer.length; at += 32) {
        given.push(answer.slice(at, at + 32));
      }
      seeds.set(holder, given);
    }
    for (const [dealer, name] of this.#order.entries()) {
      const secret = rebuildSecret(new Map([...shares[dealer]!].slice(0, p.threshold)))!;
      if (this.#u3.includes(name)) {
        const key = selfMaskKey(p.suite, this.sid, this.#ctx2, dealer, secret);
        await addMask(sum, p.modulus, await openMaskStream(key), -1);
        continue;
      }
      for (const other of this.#u3) {
        const index = this.#order.indexOf(other);
        const agreed = agree(secret, decodeAdvert(this.#adverts.get(other)!).maskKey);
        const key = pairMaskKey(p.suite, this.sid, this.#ctx2, dealer, index, agreed);
        await addMask(sum, p.modulus, await openMaskStream(key), dealer < index ? 1 : -1);
      }
    }
    const noise = readSessionNoise(this.offer, null);
    if (noise !== null) {
      const share = shareNoise(noise.block.noise, size);
      const layers = layersTakenBack(noise.block.noise, share, size - this.#u3.length);
      for (const given of seeds.values()) assert.equal(given.length, layers.length);
    }
    this.#sum = pack(sum, p.modulus);
    this.#ending = {
      kind: KINDS.release,
      message: encodeRelease({
        kind: 'release',
        fate: 2,
        sumHash: sha256(this.#sum),
        size: BigInt(packedSize(p.modulus, p.dim)),
        survivors: this.#u3.length,
        keptUntil: 0n,
      }),
    };
  }

  update(name: string, after: number): { kind: number; message: Bytes } | null {
    this.#advance();
    if (this.#ending !== null) {
      const missed = this.#u3 !== null && !this.#u3.includes(name) && this.#sum.length > 0;
      // Who is not in the sum is told that the session is over, with fate 1.
      return missed
        ? { kind: KINDS.abort, message: concat(u8(1), u16(43), text('not in the sum')) }
        : this.#ending;
    }
    if (this.#roster !== null && name === this.#settings.repeatedTo) {
      return { kind: KINDS.roster, message: this.#roster };
    }
    if (this.#u3 !== null && after < 6) {
      if (!this.#u3.includes(name)) throw new SecAggError('SESSION_OVER', 'not in U3');
      return {
        kind: KINDS.survivors,
        message: encodeSet(this.#order.length, this.#indices(this.#u3)),
      };
    }
    if (this.#u2 !== null && after < 4) {
      const index = this.#order.indexOf(name);
      const bundles = this.#u2.flatMap((dealer) => {
        const of = this.#order.indexOf(dealer);
        if (of === index) return [];
        const at = 96 * (index < of ? index : index - 1);
        return [this.#bundles.get(dealer)!.subarray(at, at + 96)];
      });
      const u2 = encodeSet(this.#order.length, this.#indices(this.#u2));
      return { kind: KINDS.delivery, message: concat(blob(u2), blob(concat(...bundles))) };
    }
    if (this.#roster !== null && after < 3) return { kind: KINDS.roster, message: this.#roster };
    return null;
  }

  /** Says whether the client's answer to the open round is here. */
  hasAnswered(name: string): boolean {
    this.#advance();
    if (this.#roster === null) return this.#adverts.has(name);
    if (this.#u2 === null) return this.#bundles.has(name);
    return (this.#u3 === null ? this.#uploads : this.#answers).has(name);
  }

  checkView(view: Bytes): void {
    this.#advance();
    if (toHex(viewOf(this.offer.parameters.suite, this.#ctx2)) !== toHex(view)) {
      throw new SecAggError('VIEW_DIFFERS', 'another view');
    }
  }

  object(kind: number): Bytes {
    return kind === BLOBS.sum ? this.#sum : this.#settings.payload!;
  }
}

function addResidues(sum: Residues, other: Residues, modulus: bigint): void {
  other.forEach((entry, i) => {
    const total = (BigInt(sum[i]!) + BigInt(entry)) % modulus;
    if (sum instanceof BigUint64Array) sum[i] = total;
    else sum[i] = Number(total);
  });
}

/** When a call of a client fails; a test decides. */
export type Fault = (name: string, method: string, moment: 'before' | 'after') => ErrorName | null;

/** An aggregator in memory. */
export class TestAggregator {
  readonly sessions: TestSession[] = [];
  readonly #settings: Settings;
  readonly #clock: TestClock;
  readonly #partial = new Map<string, Bytes>();
  fault: Fault = () => null;
  /** Until when rounds last, as clients are told that have answered. */
  closesInMs: number | bigint = 300_000;
  /** Names the aggregator in handshakes; tests change it. */
  name: string;

  constructor(settings: Settings, clock: TestClock) {
    this.#settings = settings;
    this.#clock = clock;
    this.name = settings.aggregator ?? 'sums-1';
  }

  transport(name: string): Transport {
    return {
      identity: name,
      meet: () => Promise.resolve({ aggregator: this.name, trustDomain: 'example.org' }),
      call: async (method, request) => {
        const fail = (moment: 'before' | 'after'): void => {
          const error = this.fault(name, method, moment);
          if (error !== null) throw new SecAggError(error, `as the test says, ${moment} ${method}`);
        };
        fail('before');
        const answer = writeFields(await this.#answer(name, method, new FieldReader(request)));
        fail('after');
        return answer;
      },
      close: () => undefined,
    };
  }

  #open(after: bigint): TestSession | null {
    const last = this.sessions.at(-1);
    if (last !== undefined && !last.ended) return last.offer.sessionNumber > after ? last : null;
    const number = BigInt(this.sessions.length + 1);
    this.sessions.push(new TestSession(this.#settings, number, Math.floor(this.#clock.ms / 1000)));
    return this.sessions.at(-1)!;
  }

  async #answer(
    name: string,
    method: string,
    request: FieldReader,
  ): Promise<(readonly [number, FieldValue])[]> {
    const wait = writeFields([[1, 50]]);
    if (method === 'GetOffer') {
      const session = this.#open(request.integer(2));
      return session === null ? [[2, wait]] : [[1, session.bytes]];
    }
    const sid = toHex(request.bytes(1));
    const session = this.sessions.find((one) => toHex(one.sid) === sid);
    if (session === undefined) throw new SecAggError('UNKNOWN_SESSION', 'unknown');
    switch (method) {
      case 'AdvertiseKeys':
        session.take(name, KINDS.advert, request.bytes(2));
        return [];
      case 'ShareKeys':
        session.take(name, KINDS.bundles, request.bytes(2));
        return [];
      case 'RevealShares':
        session.take(name, KINDS.shares, request.bytes(2));
        await session.close();
        return [];
      case 'GetUploadStatus':
        session.checkView(request.bytes(2));
        return [[1, this.#status(session, name, 0)]];
      case 'UploadChunk':
        session.checkView(request.bytes(6));
        return [[1, this.#chunk(session, name, request)]];
      case 'GetUpdate': {
        await session.close();
        const update = session.update(name, Number(request.integer(2)));
        if (update === null) {
          const closes: [number, FieldValue][] = session.hasAnswered(name)
            ? [[4, this.closesInMs]]
            : [];
          return [[2, writeFields([[1, 50], ...closes])]];
        }
        return [
          [
            1,
            writeFields([
              [1, update.kind],
              [2, update.message],
            ]),
          ],
        ];
      }
      case 'FetchChunk': {
        const object = session.object(Number(request.integer(2)));
        const offset = Number(request.integer(3));
        return [
          [1, object.subarray(offset, offset + 11)],
          [2, object.length],
        ];
      }
      default:
        throw new SecAggError('INTERNAL', `no ${method} here`);
    }
  }

  #status(session: TestSession, name: string, size: number): Bytes {
    const key = `${toHex(session.sid)}/${name}`;
    const have = this.#partial.get(key)?.length ?? 0;
    return writeFields([
      [1, have],
      [2, session.accepted.has(`${name}/${KINDS.upload}`) || (size > 0 && have === size) ? 1 : 0],
    ]);
  }

  #chunk(session: TestSession, name: string, request: FieldReader): Bytes {
    const key = `${toHex(session.sid)}/${name}`;
    const have = this.#partial.get(key) ?? new Uint8Array();
    const offset = Number(request.integer(2));
    const size = Number(request.integer(3));
    if (offset > have.length) throw new SecAggError('UPLOAD_CORRUPT', 'a gap');
    // A piece at a time, so that every upload takes several calls.
    const data = request
      .bytes(5)
      .subarray(have.length - offset)
      .subarray(0, UPLOAD_PIECE);
    const now = concat(have, data);
    this.#partial.set(key, now);
    if (now.length === size) {
      if (toHex(sha256(now)) !== toHex(request.bytes(4))) {
        this.#partial.delete(key);
        throw new SecAggError('UPLOAD_CORRUPT', 'another digest');
      }
      session.take(name, KINDS.upload, now);
    }
    return this.#status(session, name, size);
  }
}
