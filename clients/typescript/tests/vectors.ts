/** Reads the vectors of the protocol and counts the rows that ran. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

import { fromHex, SecAggError, type Bytes } from '../src/internals.js';

// From clients/typescript/build/tests.
const HOME = process.env['SECAGG_VECTORS'] ?? '../../../../secagg/conformance/vectors/';

/** A row of a file of vectors; its keys are described in the README beside the files. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type Row = any;

export function readVectors(name: string): Record<string, Row[]> {
  return JSON.parse(readFileSync(new URL(`${HOME}${name}.json`, import.meta.url), 'utf8'));
}

export const hex = (text: string | null): Bytes => fromHex(text ?? '');

/** One test that runs every row of a list, and fails where their number is not the stated one. */
export function eachRow(
  file: string,
  key: string,
  count: number,
  check: (row: Row) => void | Promise<void>,
  options: { skip?: (row: Row) => boolean; skipped?: number } = {},
): void {
  test(`${file}.json, ${key}: ${count} rows`, async () => {
    const rows = readVectors(file)[key]!;
    let run = 0;
    let skipped = 0;
    for (const row of rows) {
      if (options.skip?.(row)) {
        skipped++;
        continue;
      }
      try {
        await check(row);
      } catch (error) {
        const where = `row ${run + skipped} "${row.name ?? ''}" (${row.session ?? ''})`;
        throw new Error(`${where}: ${String(error)}`, { cause: error });
      }
      run++;
    }
    assert.equal(run, count);
    assert.equal(skipped, options.skipped ?? 0);
    assert.equal(run + skipped, rows.length);
  });
}

/** Fails unless the call throws the error of this code. */
export async function refusedWith(code: number, call: () => unknown): Promise<void> {
  await assert.rejects(
    async () => {
      await call();
    },
    (error: unknown) => {
      if (!(error instanceof SecAggError)) throw error;
      assert.equal(error.code, code, error.message);
      return true;
    },
  );
}
