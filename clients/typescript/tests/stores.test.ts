/** States in a directory and in IndexedDB; files of an identity. */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFile, mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

import { IDBFactory } from 'fake-indexeddb';

import {
  decodeEnrolmentRequest,
  ed25519Verify,
  EMPTY_STATE,
  enrolmentRequestHolds,
  IndexedDbStore,
  MemoryStore,
  readState,
  writeState,
  type ClientState,
  type Store,
} from '../src/internals.js';
import {
  createIdentity,
  FileStore,
  keyText,
  parseKeyText,
  readEnrolment,
  writeRequest,
} from '../src/node.js';
import { eachRow, hex, readVectors, refusedWith, type Row } from './vectors.js';

const directories: string[] = [];
async function directory(): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'secagg-test-'));
  directories.push(path);
  return path;
}
test.after(async () => {
  for (const path of directories) await rm(path, { recursive: true });
});

const STATE: ClientState = {
  ...EMPTY_STATE,
  generation: 7,
  budgets: { task: { block: 'ab', kept: 2, returned: 1, rosters: 0, lastSession: 2n ** 62n } },
  lists: { issuer: new Uint8Array([0, 1, 255]) },
};

/** What every store promises. */
async function keepsStates(open: () => Promise<Store>): Promise<void> {
  const first = await open();
  assert.deepEqual(await first.load(), EMPTY_STATE);
  await first.commit(STATE);
  assert.deepEqual(await first.load(), STATE);
  await assert.rejects(open(), { error: 'STATE_LOCKED' });
  await first.close();
  const second = await open();
  assert.deepEqual(await second.load(), STATE);
  await second.commit({ ...STATE, generation: 8 });
  assert.equal((await second.load()).generation, 8);
  await second.close();
}

test('a directory keeps states for one client at a time', async () => {
  const path = join(await directory(), 'state');
  await keepsStates(() => FileStore.open({ directory: path }));
  assert.deepEqual(await readdir(path), ['state.json']);
  assert.equal((await stat(join(path, 'state.json'))).mode & 0o777, 0o600);
});

/** A LockManager as browsers have it, for one page. */
class Locks {
  readonly #held = new Set<string>();
  async request(
    name: string,
    _options: LockOptions,
    callback: (lock: Lock | null) => unknown,
  ): Promise<unknown> {
    if (this.#held.has(name)) return callback(null);
    this.#held.add(name);
    try {
      return await callback({ name, mode: 'exclusive' });
    } finally {
      this.#held.delete(name);
    }
  }
}

test('a database keeps states for one tab at a time', async () => {
  const factory = new IDBFactory();
  const locks = new Locks() as unknown as LockManager;
  await keepsStates(async () => {
    await new Promise((go) => setImmediate(go));
    return IndexedDbStore.open({ name: 'client', factory, locks });
  });
});

/** A database, its locks, and a mark outside of it. */
function browser(): { open: () => Promise<IndexedDbStore>; evict: () => Promise<void> } {
  const factory = new IDBFactory();
  const locks = new Locks() as unknown as LockManager;
  let marked: string | null = null;
  const mark = {
    read: () => marked,
    write: (text: string) => {
      marked = text;
    },
  };
  return {
    open: async () => {
      await new Promise((go) => setImmediate(go));
      return IndexedDbStore.open({ name: 'client', factory, locks, mark });
    },
    evict: () =>
      new Promise((resolve, reject) => {
        const request = factory.deleteDatabase('client');
        request.onsuccess = () => {
          resolve();
        };
        request.onerror = reject;
      }),
  };
}

test('an evicted database is refused, and takes the identity key with it', async () => {
  const { open, evict } = browser();
  const store = await open();
  await store.commit(STATE);
  await store.identity();
  await store.close();
  await evict();
  await assert.rejects(open(), { error: 'RESTORED_STATE' });
});

test('a browser keeps its key and its credential', async () => {
  const { open } = browser();
  const first = await open();
  const signer = await first.identity();
  assert.equal(await first.credential(), null);
  await first.keepCredential(new Uint8Array([1, 2]));
  await first.close();
  const second = await open();
  const again = await second.identity();
  assert.deepEqual(again.publicKey, signer.publicKey);
  const signed = await again.sign(new Uint8Array([3]));
  assert.ok(ed25519Verify(signer.publicKey, new Uint8Array([3]), signed));
  assert.deepEqual(await second.credential(), new Uint8Array([1, 2]));
  await second.close();
});

test('nothing of a state stands in the database as it is', async () => {
  const factory = new IDBFactory();
  const locks = new Locks() as unknown as LockManager;
  const store = await IndexedDbStore.open({ name: 'client', factory, locks });
  await store.commit({ ...STATE, trustDomain: 'a text that is looked for' });
  const database = await new Promise<IDBDatabase>((resolve) => {
    const request = factory.open('client', 1);
    request.onsuccess = () => {
      resolve(request.result);
    };
  });
  const rows = await new Promise<unknown[]>((resolve) => {
    const request = database.transaction('client').objectStore('client').getAll();
    request.onsuccess = () => {
      resolve(request.result as unknown[]);
    };
  });
  assert.equal(rows.length, 2);
  const bytes = rows.flatMap((row) => Object.values(row as object) as unknown[]);
  for (const value of bytes) {
    const text =
      value instanceof ArrayBuffer ? Buffer.from(value).toString('latin1') : String(value);
    assert.equal(text.includes('looked for'), false);
  }
  await store.close();
});

test('a state in memory is a copy', async () => {
  const store = new MemoryStore();
  const lists = { issuer: new Uint8Array([1]) };
  await store.commit({ ...STATE, lists });
  lists.issuer[0] = 2;
  assert.equal((await store.load()).lists['issuer']![0], 1);
});

test('the lock of a process that was killed is taken over', async () => {
  const path = await directory();
  const program = `
    import { FileStore } from ${JSON.stringify(new URL('../src/node.js', import.meta.url).href)};
    await FileStore.open({ directory: ${JSON.stringify(path)} });
    process.stdout.write('open');
    setInterval(() => undefined, 1000);`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', program]);
  await once(child.stdout, 'data');
  await assert.rejects(FileStore.open({ directory: path }), { error: 'STATE_LOCKED' });
  child.kill('SIGKILL');
  await once(child, 'close');
  const store = await FileStore.open({ directory: path });
  await store.commit(STATE);
  await store.close();
});

test('a lock of another machine is left alone', async () => {
  const path = await directory();
  const holder = { token: 'x', host: 'elsewhere', pid: 1, started: '' };
  await writeFile(join(path, 'lock'), JSON.stringify(holder));
  await assert.rejects(FileStore.open({ directory: path }), { error: 'STATE_LOCKED' });
});

test('who has lost the lock commits nothing', async () => {
  const path = await directory();
  const store = await FileStore.open({ directory: path });
  await rm(join(path, 'lock'));
  await assert.rejects(store.commit(STATE), { error: 'STATE_LOCKED' });
  assert.deepEqual(await store.load(), EMPTY_STATE);
});

test('a restored state is refused where there is a mark', async () => {
  const path = await directory();
  const settings = { directory: join(path, 'state'), rollbackMark: join(path, 'mark') };
  const store = await FileStore.open(settings);
  await store.commit({ ...STATE, generation: 1 });
  const old = await readFile(join(settings.directory, 'state.json'));
  await store.commit({ ...STATE, generation: 2 });
  await writeFile(join(settings.directory, 'state.json'), old);
  await assert.rejects(store.load(), { error: 'RESTORED_STATE' });
  await rm(join(settings.directory, 'state.json'));
  await assert.rejects(store.load(), { error: 'RESTORED_STATE' });
  await store.close();
});

test('of two copies under one mark, the second to commit is refused', async () => {
  const path = await directory();
  const rollbackMark = join(path, 'mark');
  const first = await FileStore.open({ directory: join(path, 'one'), rollbackMark });
  await first.commit({ ...STATE, generation: 1 });
  await mkdir(join(path, 'two'));
  await copyFile(join(path, 'one', 'state.json'), join(path, 'two', 'state.json'));
  const second = await FileStore.open({ directory: join(path, 'two'), rollbackMark });
  assert.equal((await second.load()).generation, 1);
  await first.commit({ ...STATE, generation: 2 });
  await assert.rejects(second.commit({ ...STATE, generation: 2 }), { error: 'RESTORED_STATE' });
  await first.close();
  await second.close();
});

test('a damaged mark lets no state pass', async () => {
  const path = await directory();
  const settings = { directory: join(path, 'state'), rollbackMark: join(path, 'mark') };
  const store = await FileStore.open(settings);
  await store.commit({ ...STATE, generation: 3 });
  for (const bad of ['', 'x\n', '-1\n', '3', '1e9\n', 'Infinity\n']) {
    await writeFile(settings.rollbackMark, bad);
    await assert.rejects(store.load(), { error: 'STATE_DAMAGED' });
  }
  await store.close();
});

test('a damaged state is refused', () => {
  const text = writeState(STATE);
  assert.deepEqual(readState(text), STATE);
  for (const bad of ['', text.slice(1), text.slice(0, -1), '{"version":2}', 'null']) {
    assert.throws(() => readState(bad), { error: 'STATE_DAMAGED' });
  }
});

const enrolment = readVectors('enrolment') as Row;

eachRow('enrolment', 'identity_files', 10, async (row) => {
  const path = await directory();
  const files = { identity: join(path, 'identity.seed'), credential: join(path, 'credential.bin') };
  await writeFile(files.identity, hex(row.seed));
  await writeFile(files.credential, hex(row.credential));
  const enrolmentKey = keyText(hex(row.enrolment_key ?? readVectors('receipts')['enrolment_key']));
  const read = () =>
    readEnrolment(
      { ...files, enrolmentKey, trustDomain: 'example.org', name: row.owner },
      BigInt(enrolment.session_end),
    );
  if (row.success) assert.equal((await read()).credential.name, row.owner);
  else await refusedWith(row.code, read);
});

test('an identity is made once, and its request holds', async () => {
  const path = join(await directory(), 'identity');
  const key = await createIdentity(path, 'example.org', 'hospital-a', 1700000000n);
  const seed = join(path, 'identity.seed');
  assert.equal((await stat(seed)).mode & 0o777, 0o600);
  const request = decodeEnrolmentRequest(await readFile(join(path, 'request.bin')));
  assert.ok(enrolmentRequestHolds(request));
  assert.equal(keyText(request.key), key);
  assert.deepEqual(parseKeyText(key), request.key);
  await assert.rejects(createIdentity(path, 'example.org', 'hospital-a'), { code: 'EEXIST' });
  assert.equal(await writeRequest(path, 'example.org', 'hospital-a', 1700000001n), key);
  const again = decodeEnrolmentRequest(await readFile(join(path, 'request.bin')));
  assert.equal(again.madeAt, 1700000001n);
});

test('key texts of another form are refused', () => {
  const good = keyText(hex(enrolment.signatures[0].key));
  for (const bad of [
    '',
    good.slice(8),
    good.toUpperCase(),
    `${good} `,
    `ed25519:${'00'.repeat(32)}`,
  ]) {
    assert.throws(() => parseKeyText(bad), { error: 'BAD_SETTINGS' });
  }
});
