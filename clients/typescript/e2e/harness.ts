/** A real aggregator with Python and TypeScript clients, all of them processes on loopback. */

import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import type { ProcessSettings } from './client.js';

const ROOT = fileURLToPath(new URL('../../../../', import.meta.url));
/** The command `secagg`, as it is installed; by default that of the repository's `.venv`. */
export const SECAGG = process.env['SECAGG'] ?? join(ROOT, '.venv/bin/secagg');
const ENVIRONMENT = { ...process.env, PYTHONPATH: ROOT, OPENBLAS_NUM_THREADS: '1' };

export const NO_NOISE = 'I understand that the sum itself is released without noise';

/** Writes a vector as numpy's .npy, version 1. */
export function writeNpy(path: string, vector: readonly number[], type: '<f8' | '<i8'): void {
  const header = `{'descr': '${type}', 'fortran_order': False, 'shape': (${vector.length},), }`;
  const padded = header.padEnd(Math.ceil((header.length + 11) / 64) * 64 - 11) + '\n';
  const size = Buffer.alloc(2);
  size.writeUInt16LE(padded.length);
  const data =
    type === '<f8' ? Float64Array.from(vector) : BigInt64Array.from(vector, (x) => BigInt(x));
  const head = Buffer.concat([
    Buffer.from('\x93NUMPY\x01\x00', 'latin1'),
    size,
    Buffer.from(padded),
  ]);
  writeFileSync(path, Buffer.concat([head, Buffer.from(data.buffer)]));
}

/** Reads a vector of doubles or 64-bit integers of numpy's .npy, version 1. */
export function readNpy(path: string): number[] {
  const bytes = readFileSync(path);
  const start = 10 + bytes.readUInt16LE(8);
  const header = bytes.subarray(10, start).toString('latin1');
  const data = new Uint8Array(bytes.subarray(start)).buffer;
  if (header.includes("'<f8'")) return [...new Float64Array(data)];
  if (header.includes("'<i8'")) return Array.from(new BigInt64Array(data), Number);
  throw new Error(`another type of array: ${header}`);
}

interface Ended {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly output: string;
  readonly errors: string;
}

async function freePort(): Promise<number> {
  const server = createServer();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, 'close');
  return port;
}

/** Clients' entries on the grid of a task of {@link GRID_TASK}: their vectors are not rounded. */
export const GRID_DIM = 16_384;
/** The budget of such a task; its clients allow no more. */
export const GRID_EPSILON = 50;
/** What clients of tasks with noise allow: the tasks' 1e-7, and what a ring adds. */
export const MAX_DELTA = 1.01e-7;
/** Entries of its noise section: the sum shows the law of its noise. */
export const GRID_TASK =
  `epsilon = ${GRID_EPSILON}.0\ndelta = 1e-7\nl2_clip = 1.0\nscale_factor = 128.0\n` +
  'rotation = "none"\naccountant = "mixture-simple"\n';

/** A vector of norm 0.97 on the grid, with signs of its own for each client. */
export const onGrid = (client: number): number[] =>
  Array.from(
    { length: GRID_DIM },
    (_, i) => ((i * (client + 3)) % 17 === 0 ? 0 : (i >> client) % 3 === 0 ? -1 : 1) / 128,
  );

/** The sum of vectors, entry by entry. */
export const sumOf = (vectors: readonly (readonly number[])[]): number[] =>
  vectors[0]!.map((_, i) => vectors.reduce((total, vector) => total + vector[i]!, 0));

/** What a TypeScript client has printed. */
export interface Printed {
  readonly sessionNumber: string;
  readonly released: boolean;
  readonly sum: number[] | null;
  readonly survivors: number;
  readonly fitted: number | null;
  readonly error: string | null;
  readonly replaced: string | null;
  readonly charge: string;
  readonly receipt: string;
}

/** One deployment in a temporary directory: authority, issuer, aggregator, clients. */
export class Deployment {
  readonly directory = mkdtempSync(join(tmpdir(), 'secagg-e2e-'));
  readonly #running = new Set<ChildProcess>();
  #port = 0;
  /** Where the HTTP edge listens, for deployments that open it. */
  edgePort = 0;
  #enrolmentKey = '';

  /** Makes certificates and identities for `clients` clients. */
  static async make(clients: number): Promise<Deployment> {
    const deployment = new Deployment();
    const made = await deployment.secagg('pki', 'init', 'pki', '--clients', `${clients}`, '--json');
    if (made.code !== 0) throw new Error(`secagg pki init: ${made.errors}`);
    const last = made.output.trim().split('\n').at(-1)!;
    deployment.#enrolmentKey = (JSON.parse(last) as { enrolment_key: string }).enrolment_key;
    deployment.#port = await freePort();
    return deployment;
  }

  get enrolmentKey(): string {
    return this.#enrolmentKey;
  }

  /** The HTTP edge's, as clients sign it. */
  get authority(): string {
    return `localhost:${this.edgePort}`;
  }

  /** Makes a certificate for the HTTP edge, which is its own authority; returns it as PEM. */
  async openEdge(): Promise<string> {
    this.edgePort = await freePort();
    const made = await this.#start('openssl', [
      ...['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes'],
      ...['-keyout', 'web.key', '-out', 'web.pem', '-days', '2', '-subj', '/CN=localhost'],
      ...['-addext', 'subjectAltName=DNS:localhost'],
    ]).ended;
    if (made.code !== 0) throw new Error(`openssl: ${made.errors}`);
    return readFileSync(this.path('web.pem'), 'latin1');
  }

  /** Has the issuer sign a request for a name; throws for another name. */
  async issue(name: string, request: Buffer, days: number): Promise<Buffer> {
    const path = this.path(`${name}.request.bin`);
    writeFileSync(path, request);
    const output = this.path(`${name}.credential.bin`);
    const signed = await this.secagg(
      ...['pki', 'enrol', 'sign', 'pki/issuer', path, '--name', name],
      ...['--days', String(days), '--output', output],
    );
    if (signed.code !== 0) throw new Error(signed.errors);
    return readFileSync(output);
  }

  path(...names: string[]): string {
    return join(this.directory, ...names);
  }

  /** Settings of the HTTP edge, for {@link serve}. */
  edgeSection(origins = ''): string {
    return (
      `[edge]\nlisten = "127.0.0.1:${this.edgePort}"\nauthority = "${this.authority}"\n` +
      `certificate = "web.pem"\nprivate_key = "web.key"\n${origins}`
    );
  }

  #start(command: string, args: readonly string[]): { child: ChildProcess; ended: Promise<Ended> } {
    // The edge's certificate is its own authority.
    const env = { ...ENVIRONMENT, NODE_EXTRA_CA_CERTS: this.path('web.pem') };
    const child = spawn(command, args, { cwd: this.directory, env });
    this.#running.add(child);
    let output = '';
    let errors = '';
    child.stdout.on('data', (data: Buffer) => (output += data.toString()));
    child.stderr.on('data', (data: Buffer) => (errors += data.toString()));
    const ended = (async (): Promise<Ended> => {
      const [code, signal] = (await once(child, 'close')) as [number | null, NodeJS.Signals | null];
      this.#running.delete(child);
      return { code, signal, output, errors };
    })();
    return { child, ended };
  }

  /** Runs a command of `secagg` to its end. */
  secagg(...args: string[]): Promise<Ended> {
    return this.#start(SECAGG, args).ended;
  }

  /** Judges the noise of a sum of vectors on the grid, by default the released one; throws if it is wrong. */
  async checkLaw(expected: readonly number[], sum = 'sums/sum-1.npy'): Promise<void> {
    writeNpy(this.path('expected.npy'), expected, '<f8');
    const program = fileURLToPath(new URL('../../e2e/law.py', import.meta.url));
    const files = [sum, 'sums/report-1.json', 'expected.npy'];
    const judged = await this.#start(join(dirname(SECAGG), 'python'), [program, ...files]).ended;
    if (judged.code !== 0) throw new Error(judged.errors);
  }

  /** Starts an aggregator with one task, to run until the task is done. */
  async serve(toml: string, sections = ''): Promise<Ended> {
    // A list without a serial, so that every client of malicious-server reads one.
    const listed = await this.secagg('pki', 'enrol', 'revoke', 'pki/issuer');
    if (listed.code !== 0) throw new Error(`secagg pki enrol revoke: ${listed.errors}`);
    writeFileSync(this.path('payload.bin'), 'what a session hands to its clients');
    writeFileSync(
      this.path('server.toml'),
      `[server]\nlisten = "127.0.0.1:${this.#port}"\nstate_dir = "server"\noutput_dir = "sums"\n` +
        'rollback_mark = "server.mark"\n' +
        '[tls]\nca = "pki/ca.pem"\ncertificate = "pki/server.pem"\nkey = "pki/server.key"\n' +
        `[enrolment]\ntrust_domain = "secagg.local"\nenrolment_key = "${this.#enrolmentKey}"\n` +
        `revocations = "pki/issuer/revocations.bin"\n${sections}[task]\nid = "task"\npayload = "payload.bin"\n${toml}`,
    );
    return this.#start(SECAGG, ['server', '--config', 'server.toml', '--until-done']).ended;
  }

  /** Runs a Python client; the sum it wrote is read with {@link readNpy}. */
  python(
    name: string,
    policy: string,
    vector: readonly number[],
    type: '<f8' | '<i8',
  ): Promise<Ended> {
    writeNpy(this.path(`${name}.npy`), vector, type);
    writeFileSync(
      this.path(`${name}.toml`),
      `[client]\nserver = "127.0.0.1:${this.#port}"\ntask = "task"\nstate_dir = "${name}"\n` +
        `rollback_mark = "${name}.mark"\n` +
        `[tls]\nca = "pki/ca.pem"\ncertificate = "pki/${name}.pem"\nkey = "pki/${name}.key"\n` +
        `[enrolment]\nidentity = "pki/identities/${name}/identity.seed"\n` +
        `credential = "pki/identities/${name}/credential.bin"\n` +
        `enrolment_key = "${this.#enrolmentKey}"\n[policy]\n${policy}`,
    );
    const args = [
      '--config',
      `${name}.toml`,
      '--input',
      `${name}.npy`,
      '--output',
      `${name}-sum.npy`,
    ];
    return this.#start(SECAGG, ['client', ...args]).ended;
  }

  /**
   * Runs a TypeScript client; where it kills itself, another process resumes.
   *
   * @returns What it printed, and how often it was started.
   */
  async typescript(
    name: string,
    settings: Partial<ProcessSettings>,
  ): Promise<{ printed: Printed; starts: number }> {
    const whole: ProcessSettings = {
      server: `127.0.0.1:${this.#port}`,
      ca: this.path('pki/ca.pem'),
      certificate: this.path(`pki/${name}.pem`),
      key: this.path(`pki/${name}.key`),
      task: 'task',
      state: this.path(name),
      profiles: ['honest-curious-server'],
      requireNoise: false,
      maxEpsilon: 4,
      trustDomain: 'secagg.local',
      name,
      vector: [],
      crash: '',
      enrolment: {
        identity: this.path('pki/identities', name, 'identity.seed'),
        credential: this.path('pki/identities', name, 'credential.bin'),
        enrolmentKey: this.#enrolmentKey,
      },
      ...settings,
    };
    const program = fileURLToPath(new URL('client.js', import.meta.url));
    for (let starts = 1; starts <= 2; starts++) {
      const file = this.path(`${name}.${starts}.json`);
      const crash = starts === 1 ? whole.crash : '';
      writeFileSync(file, JSON.stringify({ ...whole, crash }));
      const ended = await this.#start(process.execPath, [program, file]).ended;
      if (ended.signal === 'SIGKILL' && crash !== '') continue;
      if (ended.code !== 0) throw new Error(`${name} ended with ${ended.code}: ${ended.errors}`);
      return { printed: JSON.parse(ended.output) as Printed, starts };
    }
    throw new Error(`${name} was killed twice`);
  }

  /** Ends what still runs, and removes the directory. */
  async close(): Promise<void> {
    for (const child of this.#running) {
      child.kill('SIGKILL');
      await once(child, 'close');
    }
    rmSync(this.directory, { recursive: true, force: true });
  }
}
