/** A client's state and identity key in IndexedDB, for browsers. */

import type { Bytes } from './bytes.js';
import { SecAggError } from './errors.js';
import { WebCryptoSigner } from './signer.js';
import { EMPTY_STATE, readState, writeState, type ClientState, type Store } from './store.js';

/**
 * Where a page remembers, outside of the database, that there was one.
 *
 * A page has `localStorage` for it; a Worker has none and asks its page.
 */
export interface Mark {
  /** The text that was written last; null for none. */
  read(): string | null;
  write(text: string): void;
}

/** Settings of an {@link IndexedDbStore}. */
export interface IndexedDbSettings {
  /** Name of the database; one for each client of this origin. */
  readonly name: string;
  /** Tells an evicted database from a new client; `localStorage` by default, where it is. */
  readonly mark?: Mark;
  /** The browser's databases; another factory for tests. */
  readonly factory?: IDBFactory;
  /** The browser's locks; another manager for tests. */
  readonly locks?: LockManager;
}

const TABLE = 'client';
/** Rows: which database this is, with the key of the state; the state; the identity. */
const ROOT = 'root';
const STATE = 'state';
const IDENTITY = 'identity';
const CREDENTIAL = 'credential';
const NONCE_BYTES = 12;

interface Root {
  readonly id: string;
  readonly key: CryptoKey;
}

interface Sealed {
  readonly nonce: Bytes;
  readonly data: ArrayBuffer;
}

interface Identity {
  readonly key: CryptoKey;
  readonly publicKey: Bytes;
}

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
 * Keeps the state as one row of a database, sealed by a key that no script can export. A lock
 * of the browser lets one tab have it.
 *
 * The identity key lies in the same database: a browser that evicts the state takes the key
 * with it, and the name has to be enrolled again, by a person. Ask for persistent storage
 * (`navigator.storage.persist()`), and heed a refusal.
 */
export class IndexedDbStore implements Store {
  readonly #database: IDBDatabase;
  readonly #release: () => void;
  #key: CryptoKey | null = null;

  private constructor(database: IDBDatabase, release: () => void) {
    this.#database = database;
    this.#release = release;
  }

  /**
   * Opens the database for this tab.
   *
   * @throws SecAggError STATE_LOCKED where another tab has it; RESTORED_STATE where the browser
   *   has evicted the one that there was; STORAGE_FAILED.
   */
  static async open(settings: IndexedDbSettings): Promise<IndexedDbStore> {
    const release = await takeLock(`secagg/${settings.name}`, settings.locks ?? navigator.locks);
    try {
      const request = (settings.factory ?? indexedDB).open(settings.name, 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore(TABLE);
      };
      const store = new IndexedDbStore(await done(request), release);
      try {
        await store.#begin(settings.mark ?? pageMark(settings.name));
      } catch (error) {
        store.#database.close();
        throw error;
      }
      return store;
    } catch (error) {
      release();
      throw error;
    }
  }

  /** Compares the database with the mark, and makes what a new one has. */
  async #begin(mark: Mark | null): Promise<void> {
    const root = (await this.#get(ROOT)) as Root | undefined;
    const marked = mark?.read() ?? null;
    if (marked !== null && marked !== root?.id) {
      throw new SecAggError(
        'RESTORED_STATE',
        root === undefined
          ? "the browser has deleted this client's state and its key"
          : "this client's state is not the one that this browser had last",
        { nextStep: 'Have a new name enrolled for this browser.' },
      );
    }
    if (root !== undefined) {
      this.#key = root.key;
      if (marked === null) mark?.write(root.id);
      return;
    }
    const algorithm = { name: 'AES-GCM', length: 256 };
    const key = await crypto.subtle.generateKey(algorithm, false, ['encrypt', 'decrypt']);
    const made: Root = { id: crypto.randomUUID(), key };
    await this.#put(ROOT, made);
    this.#key = key;
    mark?.write(made.id);
  }

  async load(): Promise<ClientState> {
    const sealed = (await this.#get(STATE)) as Sealed | undefined;
    if (sealed === undefined) return EMPTY_STATE;
    let text: ArrayBuffer;
    try {
      const algorithm = { name: 'AES-GCM', iv: sealed.nonce };
      text = await crypto.subtle.decrypt(algorithm, this.#key!, sealed.data);
    } catch {
      throw new SecAggError('STATE_DAMAGED', "this client's state cannot be opened", {
        nextStep: 'Have a new name enrolled for this browser.',
      });
    }
    return readState(new TextDecoder().decode(text));
  }

  async commit(state: ClientState): Promise<void> {
    // A nonce for each commit: one key seals far fewer than 2^32 of them.
    const nonce = crypto.getRandomValues(new Uint8Array(NONCE_BYTES));
    const algorithm = { name: 'AES-GCM', iv: nonce };
    const text = new TextEncoder().encode(writeState(state));
    const data = await crypto.subtle.encrypt(algorithm, this.#key!, text);
    await this.#put(STATE, { nonce, data } satisfies Sealed);
  }

  /**
   * Returns this browser's identity key, made at the first call. No script can export it.
   *
   * @throws SecAggError STORAGE_FAILED, also where the browser has no Ed25519.
   */
  async identity(): Promise<WebCryptoSigner> {
    let found = (await this.#get(IDENTITY)) as Identity | undefined;
    if (found === undefined) {
      const { signer, pair } = await WebCryptoSigner.generate();
      found = { key: pair.privateKey, publicKey: signer.publicKey };
      await this.#put(IDENTITY, found);
    }
    return new WebCryptoSigner(found.key, found.publicKey);
  }

  /** Returns the credential that was kept, as its holder has it; null before. */
  async credential(): Promise<Bytes | null> {
    return ((await this.#get(CREDENTIAL)) as Bytes | undefined) ?? null;
  }

  /** Keeps what the issuer has signed, in its holder's form. */
  keepCredential(credential: Bytes): Promise<void> {
    return this.#put(CREDENTIAL, credential);
  }

  close(): Promise<void> {
    this.#database.close();
    this.#release();
    return Promise.resolve();
  }

  #get(row: string): Promise<unknown> {
    const table = this.#database.transaction(TABLE, 'readonly').objectStore(TABLE);
    return done(table.get(row) as IDBRequest<unknown>);
  }

  /** Puts a row in its place; it would survive the loss of power when this returns. */
  #put(row: string, value: unknown): Promise<void> {
    return new Promise((resolve, reject) => {
      const options = { durability: 'strict' } as const;
      const transaction = this.#database.transaction(TABLE, 'readwrite', options);
      transaction.oncomplete = () => {
        resolve();
      };
      transaction.onabort = () => {
        reject(failed(transaction.error));
      };
      transaction.objectStore(TABLE).put(value, row);
    });
  }
}

function pageMark(name: string): Mark | null {
  const key = `secagg/${name}`;
  const storage = (globalThis as { localStorage?: Storage }).localStorage;
  if (storage === undefined) return null;
  return {
    read: () => storage.getItem(key),
    write: (text) => {
      storage.setItem(key, text);
    },
  };
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
