/** The blocks of README.md compile against the package as it is built. */

import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

// From clients/typescript/build/tests; the package finds itself by its own name.
const HOME = fileURLToPath(new URL('../../', import.meta.url));

test('the blocks of the README compile', () => {
  const page = readFileSync(join(HOME, 'README.md'), 'utf8');
  const blocks = [...page.matchAll(/```ts\n([\s\S]*?)```/g)].map((found) => found[1] ?? '');
  assert.equal(blocks.length, 3);
  const [use, enrolment, browser] = blocks;
  const place = mkdtempSync(join(HOME, 'build', 'readme-'));
  try {
    // The second block names what the first one has made.
    const files = [`${use}\n${enrolment}`, `${browser}`].map((text, number) => {
      const path = join(place, `block-${number}.ts`);
      writeFileSync(path, text);
      return path;
    });
    const program = ts.createProgram(files, {
      target: ts.ScriptTarget.ES2022,
      lib: ['lib.es2023.d.ts', 'lib.dom.d.ts'],
      module: ts.ModuleKind.NodeNext,
      moduleResolution: ts.ModuleResolutionKind.NodeNext,
      strict: true,
      exactOptionalPropertyTypes: true,
      noEmit: true,
      types: ['node'],
    });
    const faults = ts
      .getPreEmitDiagnostics(program)
      .map((each) => ts.flattenDiagnosticMessageText(each.messageText, '\n'));
    assert.deepEqual(faults, []);
  } finally {
    rmSync(place, { recursive: true });
  }
});
