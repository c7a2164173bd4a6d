/** A client's state in IndexedDB, for browsers. */

import { SecAggError } from './errors.js';
import { EMPTY_STATE, type ClientState, type Store } from './store.js';

/** Settings of an {@link IndexedDbStore}. */
export interface IndexedDbSettings {
  /** Name of the database; one for each client of this origin. */
  readonly name: string;
  /** The browser's databases; another factory for tests. */
  readonly factory?: IDBFactory;
  /** The browser's locks; another manager for tests. */
  readonly locks?: LockManager;
}

const TABLE = 'client';
const KEY = 'state';

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => {
      resolve(request.result);
    };
    request.onerror = () => {
      reject(failed(request.error));
    };
  });
}

function failed(error: DOMException | null): SecAggError {
  return new SecAggError(
    'STORAGE_FAILED',
    `the browser's database says ${error?.name ?? 'nothing'}`,
  );
}

/**
 * Keeps the state as one row of a database. A lock of the browser lets one tab have it.
 *
 * A browser may evict the database. The client is then a new one, with all its budget:
 * ask for persistent storage (`navigator.storage.persist()`), and heed a refusal.
 */
export class IndexedDbStore implements Store {
  readonly #database: IDBDatabase;
  readonly #release: () => void;

  private constructor(database: IDBDatabase, release: () => void) {
    this.#database = database;
    this.#release = release;
  }

  /** Opens the database for this tab (STATE_LOCKED where another one has it). */
  static async open(settings: IndexedDbSettings): Promise<IndexedDbStore> {
    const release = await takeLock(`secagg/${settings.name}`, settings.locks ?? navigator.locks);
    try {
      const request = (settings.factory ?? indexedDB).open(settings.name, 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore(TABLE);
      };
      return new IndexedDbStore(await done(request), release);
    } catch (error) {
      release();
      throw error;
    }
  }

  async load(): Promise<ClientState> {
    const table = this.#database.transaction(TABLE, 'readonly').objectStore(TABLE);
    const state = (await done(table.get(KEY))) as ClientState | undefined;
    if (state === undefined) return EMPTY_STATE;
    if (state.version !== 1) {
      throw new SecAggError('STATE_DAMAGED', "this client's state is of another version");
    }
    return state;
  }

  commit(state: ClientState): Promise<void> {
    return new Promise((resolve, reject) => {
      const options = { durability: 'strict' } as const;
      const transaction = this.#database.transaction(TABLE, 'readwrite', options);
      transaction.oncomplete = () => {
        resolve();
      };
      transaction.onabort = () => {
        reject(failed(transaction.error));
      };
      transaction.objectStore(TABLE).put(state, KEY);
    });
  }

  close(): Promise<void> {
    this.#database.close();
    this.#release();
    return Promise.resolve();
  }
}

function takeLock(name: string, locks: LockManager): Promise<() => void> {
  return new Promise((resolve, reject) => {
    locks
      .request(name, { ifAvailable: true }, (lock) => {
        if (lock === null) {
          reject(
            new SecAggError('STATE_LOCKED', 'another tab has the state of this client', {
              nextStep: 'Close the other tab.',
            }),
          );
          return undefined;
        }
        // The lock is held until this promise is settled.
        return new Promise<void>((release) => {
          resolve(release);
        });
      })
      .catch(reject);
  });
}
