/**
 * The client as a program under test: `secagg conformance drive -- node build/conformance/driver.js`.
 *
 * The kit says one JSON object a line, and is answered one line. Under test is the whole
 * {@link Client} with a store on the disk: the kit takes the place of its transport. A call
 * of the client waits until the kit's next line says what the aggregator answers.
 */

import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

import {
  Client,
  concat,
  decodeHeldCredential,
  decodeOffer,
  FieldReader,
  fromHex,
  KINDS,
  SecAggError,
  SeedSigner,
  sha256,
  toHex,
  u64,
  u8,
  VectorEncoder,
  writeFields,
  type Bytes,
  type ClientSettings,
  type InputVector,
  type ProfileName,
  type Transport,
} from '../src/internals.js';
import { FileStore } from '../src/node.js';

interface Limits {
  readonly profiles: readonly number[];
  readonly suites: readonly number[];
  readonly graphs: readonly ('complete' | 'ring')[];
  readonly min_graph_bits: number;
  readonly min_clients: number;
  readonly max_clients: number;
  readonly min_survivors: number;
  readonly max_dropouts: number | null;
  readonly min_colluders: number;
  readonly require_majority: boolean;
  readonly max_dimension: number;
  readonly max_modulus_bits: number;
  readonly max_revocation_days: number | null;
  readonly require_noise: boolean;
  readonly max_epsilon: number;
  readonly max_delta: number;
  readonly min_colluder_fraction: number;
}

/** A line that opens a session, or opens it again. */
interface Opening {
  readonly do: 'begin' | 'restart';
  readonly offer: string;
  readonly name: string;
  readonly aggregator: string;
  readonly now: number;
  readonly limits: Limits;
  readonly vector: readonly (string | number)[];
  readonly forget: boolean;
  readonly membership?: {
    readonly seed: string;
    readonly credential: string;
    readonly enrolment_key: string;
    readonly trust_domain: string;
  };
  readonly revocations?: string;
}

type Line =
  | { readonly do: 'hello' }
  | Opening
  | { readonly do: 'update'; readonly update: string; readonly now: number }
  | { readonly do: 'bind'; readonly now: number }
  | { readonly do: 'refused'; readonly code: string; readonly now: number }
  | { readonly do: 'sum'; readonly packed: string };

type Answer = Readonly<Record<string, unknown>>;

const KIND_OF_METHOD: Readonly<Record<string, number>> = {
  AdvertiseKeys: KINDS.advert,
  ShareKeys: KINDS.bundles,
  ReportViolation: KINDS.complaint,
  SignConsistency: KINDS.consistency,
  RevealShares: KINDS.shares,
};
const PROFILES: Readonly<Record<number, ProfileName>> = {
  1: 'honest-curious-server',
  2: 'malicious-server',
};
const REVOCATIONS = 7;
const EMPTY = new Uint8Array();

/** What a call of the client waits for: a line of the kit. */
interface Waiting {
  readonly for: 'update' | 'view' | 'sum';
  readonly resolve: (answer: Bytes) => void;
  readonly reject: (error: Error) => void;
}

/** Stands for the aggregator in one session of one client. */
class KitTransport implements Transport {
  readonly #line: Opening;
  readonly #blocked: (said: Answer) => void;
  waiting: Waiting | null = null;
  messages: string[] = [];
  #isBound = false;
  #upload: Uint8Array[] = [];

  /** @param blocked Is told what was said when the client waits for the kit. */
  constructor(line: Opening, blocked: (said: Answer) => void) {
    this.#line = line;
    this.#blocked = blocked;
  }

  get identity(): string {
    return this.#line.name;
  }

  meet(): ReturnType<Transport['meet']> {
    const trustDomain = this.#line.membership?.trust_domain ?? 'kit';
    return Promise.resolve({ aggregator: this.#line.aggregator, trustDomain });
  }

  close(): void {
    // Nothing is open.
  }

  async call(method: string, request: Bytes): Promise<Bytes> {
    const fields = new FieldReader(request);
    const kind = KIND_OF_METHOD[method];
    if (kind !== undefined) {
      this.messages.push(toHex(concat(u8(kind), fields.bytes(2))));
      return EMPTY;
    }
    switch (method) {
      case 'GetOffer':
        return writeFields([[1, fromHex(this.#line.offer)]]);
      case 'GetUpdate':
        return this.#wait('update', {});
      case 'GetUploadStatus':
        return this.#isBound ? status(0) : this.#wait('view', { view: toHex(fields.bytes(2)) });
      case 'UploadChunk':
        return this.#take(fields);
      case 'FetchChunk':
        return fields.integer(2) === BigInt(REVOCATIONS)
          ? chunk(fromHex(this.#line.revocations ?? ''), fields)
          : this.#wait('sum', { released: true });
      default:
        throw new TypeError(`the kit has no call ${method}`);
    }
  }

  /** The kit has taken the view. */
  bind(): void {
    this.#isBound = true;
    this.#settle()?.resolve(status(0));
  }

  /** The kit hands out an update. */
  update(update: Bytes): void {
    const waiting = this.#settle();
    if (waiting?.for === 'view') {
      // The round of inputs is over: the client asks for what opens the next one.
      this.#pending = update;
      waiting.reject(new SecAggError('DEADLINE', 'the round is over'));
    } else waiting?.resolve(asUpdate(update));
  }

  #pending: Bytes | null = null;

  /** The kit hands out the sum. */
  sum(packed: Bytes): void {
    this.#settle()?.resolve(chunkOf(packed, packed.length));
  }

  /** The kit refuses the view. */
  refuse(): void {
    this.#settle()?.reject(new SecAggError('VIEW_DIFFERS', 'the aggregator has another view'));
  }

  /** Hands out what was said since the last time. */
  taken(): string[] {
    const messages = this.messages;
    this.messages = [];
    return messages;
  }

  #settle(): Waiting | null {
    const { waiting } = this;
    this.waiting = null;
    return waiting;
  }

  #wait(what: Waiting['for'], said: Answer): Promise<Bytes> {
    const pending = this.#pending;
    if (what === 'update' && pending !== null) {
      this.#pending = null;
      return Promise.resolve(asUpdate(pending));
    }
    return new Promise((resolve, reject) => {
      this.waiting = { for: what, resolve, reject };
      const all = what === 'sum' ? said : { messages: this.taken(), ...said };
      this.#blocked(all);
    });
  }

  #take(fields: FieldReader): Bytes {
    const size = Number(fields.integer(3));
    this.#upload.push(fields.bytes(5));
    const length = this.#upload.reduce((sum, piece) => sum + piece.length, 0);
    if (length < size) return status(length);
    const packed = concat(...this.#upload);
    this.#upload = [];
    const named = concat(u64(BigInt(size)), sha256(packed), fields.bytes(6));
    this.messages.push(toHex(concat(u8(KINDS.upload), named, packed)));
    return status(size, true);
  }
}

function status(nextOffset: number, complete = false): Bytes {
  const fields = writeFields([
    [1, nextOffset],
    [2, complete ? 1 : 0],
  ]);
  // A message without fields is there all the same.
  return concat(u8(10), u8(fields.length), fields);
}

function chunkOf(data: Bytes, total: number): Bytes {
  return writeFields([
    [1, data],
    [2, total],
  ]);
}

function chunk(bytes: Bytes, fields: FieldReader): Bytes {
  const offset = Number(fields.integer(3));
  return chunkOf(bytes.slice(offset, offset + Number(fields.integer(4))), bytes.length);
}

function asUpdate(update: Bytes): Bytes {
  return writeFields([
    [
      1,
      writeFields([
        [1, update[0]!],
        [2, update.slice(1)],
      ]),
    ],
  ]);
}

/** Answers the kit's lines with a client. */
class Driver {
  readonly #home: string;
  #store: FileStore | null = null;
  #clients: number;
  #transport: KitTransport | null = null;
  #now = 0;
  #answer: (answer: Answer) => void = () => undefined;

  constructor(home: string) {
    this.#home = home;
    this.#clients = Math.max(0, ...readdirSync(home).map((name) => Number.parseInt(name, 10) || 0));
  }

  /** Answers one line. */
  answer(line: Line): Promise<Answer> {
    return new Promise((resolve, reject) => {
      this.#answer = resolve;
      this.#take(line).catch(reject);
    });
  }

  async #take(line: Line): Promise<void> {
    if ('now' in line) this.#now = line.now;
    const transport = this.#transport;
    switch (line.do) {
      case 'hello':
        this.#answer({
          name: '@secagg/client',
          version: '0.1.0',
          profiles: [1, 2],
          graphs: ['complete', 'ring'],
          mechanisms: ['skellam-mixture', 'skellam', 'skellam-counts'],
          restart: 'process',
        });
        return;
      case 'begin':
      case 'restart':
        await this.#open(line);
        return;
      case 'bind':
        if (transport?.waiting?.for === 'view') transport.bind();
        else this.#answer({ messages: [] });
        return;
      case 'refused':
        if (transport?.waiting?.for === 'view') transport.refuse();
        else this.#answer({ messages: [] });
        return;
      case 'sum':
        if (transport?.waiting?.for === 'sum') transport.sum(fromHex(line.packed));
        else this.#answer({ left: 'UNEXPECTED_MESSAGE' });
        return;
      case 'update': {
        const listens = transport?.waiting != null && transport.waiting.for !== 'sum';
        if (listens && line.update !== '') transport.update(fromHex(line.update));
        else this.#answer({ messages: [] });
      }
    }
  }

  async #open(line: Opening): Promise<void> {
    if (line.do === 'begin' && line.forget) {
      await this.#store?.close();
      this.#store = null;
      this.#clients += 1;
    }
    this.#store ??= await FileStore.open({
      directory: join(this.#home, String(this.#clients)),
      rollbackMark: join(this.#home, `${this.#clients}.mark`),
    });
    // A client before this one may still wait for a line: it never hears one again.
    const transport = new KitTransport(line, (said) => {
      if (this.#transport === transport) this.#answer(said);
    });
    this.#transport = transport;
    const client = new Client(this.#settings(line, transport, this.#store));
    void this.#contribute(client, transport, vectorOf(line)).then((answer) => {
      if (this.#transport === transport) this.#answer(answer);
    });
  }

  #settings(line: Opening, transport: Transport, store: FileStore): ClientSettings {
    const { membership } = line;
    const told = line.limits;
    const enrolment = (): ReturnType<NonNullable<ClientSettings['enrolment']>> =>
      Promise.resolve({
        signer: new SeedSigner(fromHex(membership!.seed)),
        credential: decodeHeldCredential(fromHex(membership!.credential)),
        enrolmentKey: fromHex(membership!.enrolment_key),
      });
    return {
      transport,
      store,
      taskId: 'kit-task',
      attempts: 1,
      noise: new VectorEncoder(),
      clock: () => 1000 * this.#now,
      sleep: () => new Promise((go) => setImmediate(go)),
      limits: {
        requireNoise: told.require_noise,
        maxEpsilon: told.max_epsilon,
        maxDelta: told.max_delta,
        minColluderFraction: told.min_colluder_fraction,
      },
      policy: {
        profiles: told.profiles.map((number) => PROFILES[number]!),
        suites: told.suites,
        graphs: told.graphs,
        minGraphBits: told.min_graph_bits,
        minClients: told.min_clients,
        maxClients: told.max_clients,
        minSurvivors: told.min_survivors,
        maxDropouts: told.max_dropouts,
        minColluders: told.min_colluders,
        requireMajority: told.require_majority,
        maxDimension: told.max_dimension,
        maxModulusBits: told.max_modulus_bits,
        maxRevocationDays: told.max_revocation_days,
      },
      ...(membership === undefined ? {} : { enrolment }),
    };
  }

  async #contribute(client: Client, transport: KitTransport, vector: InputVector): Promise<Answer> {
    try {
      const found = await client.contribute(vector);
      if (found.released) {
        const entries = [...(found.sum as Iterable<number | bigint>)];
        // Without noise the kit takes decimal strings alone.
        const noised = vector instanceof Float64Array;
        return { sum: noised ? entries : entries.map((entry) => `${entry}`) };
      }
      const { session } = await this.#store!.load();
      const messages = transport.taken();
      return { messages, [session?.state === 'ended' ? 'ended' : 'left']: found.error };
    } catch (error) {
      if (!(error instanceof SecAggError)) throw error;
      return { messages: transport.taken(), left: error.error };
    }
  }
}

function vectorOf(line: Opening): InputVector {
  const hasNoise = blockOf(line) > 0;
  if (hasNoise) return Float64Array.from(line.vector, Number);
  const isWhole = line.vector.every((entry) => !String(entry).includes('.'));
  return isWhole ? line.vector.map((entry) => BigInt(entry)) : line.vector.map(Number);
}

function blockOf(line: Opening): number {
  try {
    return decodeOffer(fromHex(line.offer)).parameters.noiseBlock.length;
  } catch {
    return 0; // The client says what is wrong with the offer.
  }
}

const driver = new Driver(process.env['SECAGG_KIT_STATE'] ?? '.');
for await (const line of createInterface({ input: process.stdin })) {
  const answer = await driver.answer(JSON.parse(line) as Line);
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
process.exit(0);
