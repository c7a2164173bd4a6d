// Fails when the minified bundle of a browser client is larger than its ceiling.
import { build } from 'esbuild';
import { gzipSync } from 'node:zlib';

// A page loads it before a client can do anything. With gzip that is below 60 KiB: an
// eighth of a second at 4 Mbit/s. A third of it is @noble's curves, hashes and ciphers.
// Raise it with a reason: the last KiB holds the checks of a session that is resumed.
const CEILING_KIB = 153;

const { outputFiles } = await build({
  entryPoints: ['src/index.ts'],
  bundle: true,
  minify: true,
  format: 'esm',
  platform: 'browser',
  target: 'es2022',
  write: false,
  logLevel: 'error',
});
const bytes = outputFiles[0].contents;
const kib = (size) => (size / 1024).toFixed(1);
console.log(
  `browser bundle: ${kib(bytes.length)} KiB, ${kib(gzipSync(bytes).length)} KiB with gzip; at most ${CEILING_KIB} KiB`,
);
if (new TextDecoder().decode(bytes).includes('node:')) {
  console.error('the browser bundle imports a module of Node: move its import to src/node.ts');
  process.exitCode = 1;
}
if (bytes.length > 1024 * CEILING_KIB) {
  console.error(
    'the browser bundle is too large: see what grew, or raise CEILING_KIB with a reason',
  );
  process.exitCode = 1;
}
