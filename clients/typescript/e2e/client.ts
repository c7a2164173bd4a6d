/**
 * One client as a process, for the end-to-end tests: `node client.js SETTINGS.json`.
 *
 * `crash` names where the process kills itself, once: after which commit ("commit 3"), or
 * after which call was answered ("call UploadChunk").
 */

import { readFileSync } from 'node:fs';

import {
  Client,
  EdgeTransport,
  toHex,
  VectorEncoder,
  type ClientState,
  type ProfileName,
  type Store,
  type Transport,
} from '../src/index.js';
import { FileStore, GrpcTransport, readEnrolment } from '../src/node.js';

export interface ProcessSettings {
  readonly server: string;
  readonly ca: string;
  readonly certificate: string;
  readonly key: string;
  readonly aggregator?: string;
  readonly task: string;
  readonly state: string;
  readonly profiles: readonly ProfileName[];
  readonly requireNoise: boolean;
  readonly maxEpsilon: number;
  readonly enrolment: { identity: string; credential: string; enrolmentKey: string };
  /** Authority of the HTTP edge, in place of gRPC at `server`. */
  readonly edge?: string;
  readonly trustDomain: string;
  readonly name: string;
  readonly vector: readonly number[];
  readonly crash: string;
}

const settings = JSON.parse(readFileSync(process.argv[2]!, 'utf8')) as ProcessSettings;

const crash = (point: string): void => {
  // Nothing is cleaned up, as by a loss of power.
  if (point === settings.crash) process.kill(process.pid, 'SIGKILL');
};

let commits = 0;
const store: Store = await FileStore.open({
  directory: settings.state,
  rollbackMark: `${settings.state}.mark`,
});
const crashingStore: Store = {
  load: () => store.load(),
  commit: async (state: ClientState) => {
    await store.commit(state);
    crash(`commit ${++commits}`);
  },
  close: () => store.close(),
};

const { enrolment, edge } = settings;
const enrolled = () =>
  readEnrolment({ ...enrolment, trustDomain: settings.trustDomain, name: settings.name });
const transport: Transport =
  edge === undefined
    ? new GrpcTransport(settings)
    : new EdgeTransport({
        authority: edge,
        aggregator: 'aggregator',
        direct: true, // no proxy stands before it here
        ...(await enrolled()),
      });
const crashingTransport: Transport = {
  identity: transport.identity,
  meet: () => transport.meet(),
  call: async (method, request, timeoutMs) => {
    const answer = await transport.call(method, request, timeoutMs);
    crash(`call ${method}`);
    return answer;
  },
  close: () => {
    transport.close();
  },
};

const client = new Client({
  transport: crashingTransport,
  store: crashingStore,
  taskId: settings.task,
  noise: new VectorEncoder(),
  policy: { profiles: settings.profiles, graphs: ['complete', 'ring'] },
  limits: { requireNoise: settings.requireNoise, maxEpsilon: settings.maxEpsilon },
  enrolment: enrolled,
});

const contribution = await client.contribute(
  settings.requireNoise ? Float64Array.from(settings.vector) : settings.vector,
);
await store.close();
transport.close();
process.stdout.write(
  `${JSON.stringify({
    ...contribution,
    sessionNumber: String(contribution.sessionNumber),
    sum: contribution.sum === null ? null : Array.from(contribution.sum, Number),
    receipt: toHex(contribution.receipt),
  })}\n`,
);
