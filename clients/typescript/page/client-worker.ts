/**
 * The client of the page, in a Worker: masks and noise of long vectors would block the page.
 *
 * It has the keys and the vector; the page has neither.
 */

import {
  Client,
  decodeHeldCredential,
  EdgeTransport,
  fromHex,
  IndexedDbStore,
  makeEnrolmentRequest,
  SecAggError,
  toHex,
  VectorEncoder,
  type ClientState,
  type Contribution,
  type HeldCredential,
  type SessionState,
  type Signer,
  type Store,
} from '../src/index.js';
import type { Asked, PageSettings, Told } from './messages.js';

/** What a Worker is to this module. */
export interface WorkerScope {
  postMessage(told: Told): void;
  onmessage: ((event: MessageEvent<Asked>) => unknown) | null;
}

/** Serves one page. `afterCommit` is awaited behind each commit, with their number. */
export function serve(
  scope: WorkerScope,
  afterCommit: (commits: number) => Promise<void> = () => Promise.resolve(),
): void {
  let client: Client | null = null;
  const fail = (error: unknown): void => {
    const known = error instanceof SecAggError;
    scope.postMessage({
      kind: 'failed',
      error: known ? error.error : 'INTERNAL',
      text: error instanceof Error ? error.message : 'something that is no error was thrown',
    });
  };

  const open = async (settings: PageSettings, mark: string | null): Promise<void> => {
    const store = await IndexedDbStore.open({
      name: settings.name,
      mark: {
        read: () => mark,
        write: (text) => {
          scope.postMessage({ kind: 'mark', text });
        },
      },
    });
    const signer = await store.identity();
    const credential = await enrolled(store, settings, signer);
    const watched = new WatchedStore(store, async (state, commits) => {
      scope.postMessage({ kind: 'phase', phase: state, commits });
      await afterCommit(commits);
    });
    client = new Client({
      transport: new EdgeTransport({
        authority: settings.authority,
        aggregator: settings.aggregator,
        direct: settings.direct,
        signer,
        credential,
      }),
      store: watched,
      taskId: settings.task,
      noise: new VectorEncoder(),
      policy: { profiles: [settings.profile], graphs: settings.graphs },
      limits: {
        requireNoise: settings.noise,
        maxEpsilon: settings.maxEpsilon,
        maxDelta: settings.maxDelta,
      },
      enrolment: () =>
        Promise.resolve({ signer, credential, enrolmentKey: fromHex(settings.enrolmentKey) }),
      waitSeconds: 600,
    });
    const { session } = await store.load();
    const isOpen = session !== null && session.state !== 'ended' && session.state !== 'left';
    scope.postMessage({
      kind: 'ready',
      key: `ed25519:${toHex(signer.publicKey)}`,
      phase: isOpen ? session.state : null,
    });
  };

  const contribute = async (numbers: string | Blob): Promise<void> => {
    const text = typeof numbers === 'string' ? numbers : await numbers.text();
    const vector = Float64Array.from(text.split(','), (word) =>
      word.trim() === '' ? NaN : Number(word),
    );
    if (!vector.every(Number.isFinite)) {
      throw new SecAggError('BAD_VECTOR', 'these are not numbers separated by commas');
    }
    scope.postMessage(toldOf(await client!.contribute(vector)));
  };

  scope.onmessage = ({ data }) => {
    if (data.kind === 'open') {
      open(data.settings, data.mark).catch(fail);
      return;
    }
    contribute(data.numbers).catch(fail);
  };
}

/** A page of more numbers would stand still while it is laid out. */
const MOST_SHOWN = 200;

function toldOf(contribution: Contribution): Told {
  const { sum, survivors, error, reason, sessionNumber } = contribution;
  const more = sum === null || sum.length <= MOST_SHOWN ? '' : `, … (${sum.length} numbers)`;
  return {
    kind: 'over',
    sum: sum === null ? null : Array.from(sum.slice(0, MOST_SHOWN), Number).join(', ') + more,
    whole: sum === null ? null : new Blob([sum.join(', ')], { type: 'text/plain' }),
    text:
      error === null
        ? `Session ${sessionNumber} is over: the sum of ${survivors} vectors, yours among them.`
        : `Session ${sessionNumber} is over without a sum: ${reason} (${error})`,
  };
}

/** A session of two-day rounds takes ten days, and its credential has to outlive it (R2.1-3). */
const RENEWED_BEFORE_SECONDS = 14n * 24n * 3600n;

/** Returns the credential that is kept; has one issued where there is none, or it ends soon. */
async function enrolled(
  store: IndexedDbStore,
  settings: PageSettings,
  signer: Signer,
): Promise<HeldCredential> {
  const bytesKept = await store.credential();
  const kept = bytesKept === null ? null : decodeHeldCredential(bytesKept);
  const now = BigInt(Math.floor(Date.now() / 1000));
  if (kept !== null && kept.credential.notAfter > now + RENEWED_BEFORE_SECONDS) return kept;
  const body = await makeEnrolmentRequest(settings.trustDomain, settings.name, now, signer);
  const asked = fetch('enrol', { method: 'POST', body, redirect: 'error' });
  const answer = await asked.catch(() => null);
  if (answer?.ok !== true) {
    if (kept !== null) return kept; // for short sessions it may do
    throw new SecAggError(
      'BAD_CREDENTIAL',
      `the application does not enrol: ${answer?.status ?? 'no answer'}`,
      {
        nextStep: 'Ask the party that serves this page.',
      },
    );
  }
  const bytes = new Uint8Array(await answer.arrayBuffer());
  const held = decodeHeldCredential(bytes);
  await store.keepCredential(bytes);
  return held;
}

/** A store that says what it has committed. */
class WatchedStore implements Store {
  readonly #inner: Store;
  readonly #told: (state: SessionState, commits: number) => Promise<void>;
  #commits = 0;

  constructor(inner: Store, told: (state: SessionState, commits: number) => Promise<void>) {
    this.#inner = inner;
    this.#told = told;
  }

  load(): Promise<ClientState> {
    return this.#inner.load();
  }

  async commit(state: ClientState): Promise<void> {
    await this.#inner.commit(state);
    this.#commits++;
    if (state.session !== null) await this.#told(state.session.state, this.#commits);
  }

  close(): Promise<void> {
    return this.#inner.close();
  }
}
