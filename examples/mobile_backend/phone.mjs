/**
 * One wake-up of a phone whose app uses the TypeScript client: `node phone.mjs`.
 *
 * It knows its directory, and what it is told on standard input: the vector and the login are
 * secrets, and every user of a machine reads command lines. It answers with one line of JSON,
 * and ends.
 */

import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { json } from 'node:stream/consumers';

import {
  Client,
  EdgeTransport,
  SecAggError,
  VectorEncoder,
} from '../../clients/typescript/dist/index.js';
import {
  createIdentity,
  FileStore,
  readEnrolment,
} from '../../clients/typescript/dist/node.js';

const settings = await json(process.stdin);
const { directory, name, trustDomain } = settings;

/** Makes a key, and asks the app's own server for a credential of the user's name. */
async function enrol() {
  await createIdentity(directory, trustDomain, name);
  const answer = await fetch(`${settings.application}/enrol`, {
    method: 'POST',
    headers: { 'login-token': settings.token },
    body: await readFile(join(directory, 'request.bin')),
  });
  if (!answer.ok) throw new Error(`the app's server answers with ${answer.status}`);
  await writeFile(join(directory, 'credential.bin'), Buffer.from(await answer.arrayBuffer()));
  return {};
}

/** Passes calls on, until what the settings name happens to the phone. */
class Network {
  isHit = false;
  #transport;

  constructor(transport) {
    this.#transport = transport;
    this.identity = transport.identity;
  }

  meet() {
    return this.#transport.meet();
  }

  async call(method, request, timeoutMs) {
    const happens = method === settings.faultAt && !this.isHit;
    if (happens && settings.fault === 'killed') process.kill(process.pid, 'SIGKILL');
    const answer = await this.#transport.call(method, request, timeoutMs);
    this.isHit ||= happens;
    if (happens) throw new SecAggError('UNREACHABLE', 'the network is lost');
    return answer;
  }

  close() {
    this.#transport.close();
  }
}

async function visit() {
  const files = {
    identity: join(directory, 'identity.seed'),
    credential: join(directory, 'credential.bin'),
    enrolmentKey: settings.enrolmentKey,
    trustDomain,
    name,
  };
  // The proofs of its calls are corrected by the edge's clock; nothing else is.
  const clock = () => Date.now() - settings.slowMs;
  const enrolment = () => readEnrolment(files, BigInt(Math.floor(clock() / 1000)));
  const { signer, credential } = await enrolment();
  const way = { authority: settings.authority, aggregator: 'aggregator', signer, credential };
  const network = new Network(new EdgeTransport({ ...way, clock }));
  const store = await FileStore.open({
    directory: join(directory, 'state'),
    rollbackMark: join(directory, 'mark'),
  });
  try {
    const client = new Client({
      transport: network,
      store,
      clock,
      taskId: settings.task,
      noise: new VectorEncoder(),
      enrolment,
      policy: { profiles: ['malicious-server'] },
      limits: {
        requireNoise: settings.hasNoise,
        maxEpsilon: settings.maxEpsilon,
        maxDelta: settings.maxDelta,
        minColluderFraction: 0.1,
      },
    });
    const vector = settings.hasNoise ? Float64Array.from(settings.vector) : settings.vector;
    // A call that fails is not tried again here: the phone sleeps, and comes back.
    const options = { heldMs: settings.heldMs, visitMs: 0 };
    const answer = { comeBackMs: 0, inputs: 0, values: [], error: '' };
    try {
      const { comeBackMs, contribution } = await client.visit(vector, options);
      answer.comeBackMs = comeBackMs;
      answer.error = contribution?.error ?? '';
      answer.inputs = contribution?.survivors ?? 0;
      answer.values = Array.from(contribution?.sum ?? [], Number);
    } catch (error) {
      if (!(error instanceof SecAggError)) throw error;
      answer.error = error.error;
    }
    return { ...answer, isHit: network.isHit };
  } finally {
    await store.close();
    network.close();
  }
}

process.stdout.write(`${JSON.stringify(await (settings.does === 'enrol' ? enrol() : visit()))}\n`);
