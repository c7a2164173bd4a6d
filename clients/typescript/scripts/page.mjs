// Builds the page into build/site: `node scripts/page.mjs [WORKER]`, for tests another Worker.
import { build } from 'esbuild';
import { copyFile, mkdir } from 'node:fs/promises';

const [worker = 'page/worker.ts', out = 'build/site'] = process.argv.slice(2);
await mkdir(out, { recursive: true });
for (const [source, name] of [
  ['page/page.ts', 'page.js'],
  [worker, 'worker.js'],
]) {
  await build({
    entryPoints: [source],
    outfile: `${out}/${name}`,
    bundle: true,
    minify: true,
    format: 'esm',
    platform: 'browser',
    target: 'es2022',
    logLevel: 'error',
  });
}
for (const name of ['index.html', 'style.css']) await copyFile(`page/${name}`, `${out}/${name}`);
