/** A client's state in a directory of this machine, for Node. */

import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { link, mkdir, open, readFile, rename, rm, unlink } from 'node:fs/promises';
import { hostname } from 'node:os';
import { dirname, join } from 'node:path';

import { SecAggError } from './errors.js';
import { EMPTY_STATE, readState, writeState, type ClientState, type Store } from './store.js';

/** Settings of a {@link FileStore}. */
export interface FileStoreSettings {
  /** Directory on a disk of this machine; made with mode 0700 where it is missing. */
  readonly directory: string;
  /**
   * File outside of the directory and of its backups that tells a restored state from
   * the newest one. Without it, a restored state is not noticed.
   */
  readonly rollbackMark?: string;
}

interface Holder {
  readonly token: string;
  readonly host: string;
  readonly pid: number;
  /** When the process started, so that a number given twice is told apart; empty if unknown. */
  readonly started: string;
}

function startOf(pid: number): string {
  try {
    // The 22nd field; the second one may hold spaces and brackets.
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? '';
  } catch {
    return '';
  }
}

function isAlive(holder: Holder): boolean {
  try {
    process.kill(holder.pid, 0);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return false;
  }
  return holder.started === '' || startOf(holder.pid) === holder.started;
}

async function readHolder(path: string): Promise<Holder | undefined> {
  try {
    return JSON.parse(await readFile(path, 'utf8')) as Holder;
  } catch {
    return undefined;
  }
}

async function syncDirectory(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

async function writeDurably(path: string, text: string): Promise<void> {
  const temporary = `${path}.${randomUUID()}`;
  const handle = await open(temporary, 'wx', 0o600);
  try {
    await handle.writeFile(text);
    await handle.sync();
  } finally {
    await handle.close();
  }
  await rename(temporary, path);
  await syncDirectory(dirname(path));
}

/**
 * Keeps the state in `state.json` of a directory: written beside it, flushed to the disk,
 * and renamed into its place. The file `lock` names the process that has the directory.
 */
export class FileStore implements Store {
  readonly #path: string;
  readonly #lock: string;
  readonly #mark: string | undefined;
  readonly #holder: Holder;

  private constructor(settings: FileStoreSettings) {
    this.#path = join(settings.directory, 'state.json');
    this.#lock = join(settings.directory, 'lock');
    this.#mark = settings.rollbackMark;
    this.#holder = {
      token: randomUUID(),
      host: hostname(),
      pid: process.pid,
      started: startOf(process.pid),
    };
  }

  /** Takes the directory for this process (STATE_LOCKED where another one has it). */
  static async open(settings: FileStoreSettings): Promise<FileStore> {
    await mkdir(settings.directory, { recursive: true, mode: 0o700 });
    const store = new FileStore(settings);
    await store.#take();
    return store;
  }

  async #take(): Promise<void> {
    const own = `${this.#lock}.${this.#holder.token}`;
    await writeDurably(own, JSON.stringify(this.#holder));
    try {
      // A process that ended without letting go leaves its lock behind; one that takes
      // the directory at this moment makes the second attempt fail.
      for (let attempt = 0; attempt < 2; attempt++) {
        try {
          // A link is made for one process alone.
          await link(own, this.#lock);
          return;
        } catch (error) {
          if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
        }
        await this.#removeStale();
      }
      this.#locked('another process');
    } finally {
      await unlink(own);
    }
  }

  #locked(by: string): never {
    throw new SecAggError(
      'STATE_LOCKED',
      `the state in ${dirname(this.#path)} is in use by ${by}`,
      {
        nextStep: 'Stop the other client, or give each client a directory of its own.',
      },
    );
  }

  async #removeStale(): Promise<void> {
    const holder = await readHolder(this.#lock);
    if (holder === undefined) return;
    if (holder.host !== this.#holder.host) this.#locked(`a process of the machine ${holder.host}`);
    if (isAlive(holder)) this.#locked(`process ${holder.pid}`);
    const moved = `${this.#lock}.stale.${this.#holder.token}`;
    try {
      await rename(this.#lock, moved);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return;
      throw error;
    }
    // Between reading and renaming another process may have taken the directory: it sees,
    // before it commits, whose the lock is.
    const found = await readHolder(moved);
    if (found !== undefined && found.token !== holder.token) {
      await link(moved, this.#lock).catch(() => undefined);
    }
    await rm(moved, { force: true });
  }

  async load(): Promise<ClientState> {
    let state: ClientState;
    try {
      state = readState(await readFile(this.#path, 'utf8'));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
      state = EMPTY_STATE;
    }
    if (this.#mark !== undefined && state.generation < (await this.#newest())) {
      this.#restored();
    }
    return state;
  }

  #restored(): never {
    throw new SecAggError(
      'RESTORED_STATE',
      'the state of this client was restored from an older copy, or another copy is in use',
      {
        nextStep: 'Restore the newest state, or enrol the client under another name.',
      },
    );
  }

  async #newest(): Promise<number> {
    let text: string;
    try {
      text = await readFile(this.#mark!, 'utf8');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return 0;
      throw error;
    }
    // Read as 0, a damaged mark would let every older state pass.
    if (!/^[0-9]{1,15}\n$/.test(text)) {
      throw new SecAggError(
        'STATE_DAMAGED',
        "the rollback mark of this client's state is damaged",
        {
          nextStep: 'Enrol the client under another name, with a new directory and mark.',
        },
      );
    }
    return Number(text);
  }

  async commit(state: ClientState): Promise<void> {
    const holder = await readHolder(this.#lock);
    if (holder?.token !== this.#holder.token) this.#locked('another process');
    // A copy of this directory under the same mark may have gone further meanwhile.
    if (this.#mark !== undefined && state.generation <= (await this.#newest())) this.#restored();
    await writeDurably(this.#path, writeState(state));
    if (this.#mark !== undefined) await writeDurably(this.#mark, `${state.generation}\n`);
  }

  async close(): Promise<void> {
    const holder = await readHolder(this.#lock);
    if (holder?.token === this.#holder.token) await unlink(this.#lock);
  }
}
