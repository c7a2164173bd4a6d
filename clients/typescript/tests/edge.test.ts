/** The HTTP edge's transport: what is signed, what is believed, what is refused. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  ed25519Verify,
  EdgeTransport,
  SecAggError,
  SeedSigner,
  sha256,
  utf8,
  WebCryptoSigner,
  writeFields,
  type Bytes,
  type EdgeSettings,
  type FieldValue,
  type Signer,
} from '../src/internals.js';
import { NOW } from './aggregator.js';

type Answer = (url: string, request: RequestInit) => Response | Promise<Response>;

function settings(answer: Answer, change: Partial<EdgeSettings> = {}): EdgeSettings {
  const signer: Signer = change.signer ?? new SeedSigner(new Uint8Array(32).fill(7));
  return {
    authority: 'sums.example.org:7443',
    aggregator: 'sums-1',
    signer,
    credential: {
      trustDomain: 'example.org',
      name: 'ann',
      credential: {
        key: signer.publicKey,
        notBefore: 0n,
        notAfter: 1n << 40n,
        serial: 1,
        signature: new Uint8Array(64),
      },
    },
    clock: () => 1000 * NOW,
    fetch: (async (url: string, request: RequestInit) => answer(url, request)) as typeof fetch,
    ...change,
  };
}

function failure(status: number, fields: readonly (readonly [number, FieldValue])[]): Response {
  const value = btoa(String.fromCharCode(...writeFields(fields))).replaceAll('=', '');
  const details = [{ type: 'secagg.v1.ErrorDetail', value }];
  return new Response(JSON.stringify({ code: 'x', message: 'y', details }), { status });
}

const BODY: Bytes = Uint8Array.from([1, 2, 3]);

for (const kind of ['seed', 'WebCrypto']) {
  test(`a request is signed as R10.3 says, by a key of ${kind}`, async () => {
    const signer =
      kind === 'seed' ? SeedSigner.generate().signer : (await WebCryptoSigner.generate()).signer;
    let seen: { url: string; request: RequestInit } | undefined;
    const transport = new EdgeTransport(
      settings(
        (url, request) => {
          seen = { url, request };
          return new Response(Uint8Array.from([9]));
        },
        { signer },
      ),
    );
    assert.deepEqual(await transport.call('GetUpdate', BODY, 1000), Uint8Array.from([9]));
    const { url, request } = seen!;
    const headers = request.headers as Record<string, string>;
    assert.equal(url, 'https://sums.example.org:7443/secagg.v1.SecAggService/GetUpdate');
    assert.equal(request.redirect, 'error');
    assert.equal(request.credentials, 'omit');
    const digest = Buffer.from(sha256(BODY)).toString('base64');
    assert.equal(headers['Content-Digest'], `sha-256=:${digest}:`);
    const parameters = headers['Signature-Input']!.slice('sig='.length);
    assert.match(
      parameters,
      new RegExp(`;created=${NOW};keyid="[\\w-]{43}";alg="ed25519";tag="secagg-edge"$`),
    );
    const base = [
      '"@method": POST',
      '"@authority": sums.example.org:7443',
      '"@path": /secagg.v1.SecAggService/GetUpdate',
      `"content-digest": ${headers['Content-Digest']}`,
      `"secagg-credential": ${headers['Secagg-Credential']}`,
      `"@signature-params": ${parameters}`,
    ].join('\n');
    const signature = Buffer.from(headers['Signature']!.slice(5, -1), 'base64');
    assert.ok(ed25519Verify(signer.publicKey, utf8(base), new Uint8Array(signature)));
  });
}

test('a wrong clock is corrected once, by an hour at most', async () => {
  const created: number[] = [];
  const transport = (serverTime: number): EdgeTransport =>
    new EdgeTransport(
      settings((_url, request) => {
        const headers = request.headers as Record<string, string>;
        created.push(Number(/created=(\d+)/.exec(headers['Signature-Input']!)![1]));
        return failure(401, [
          [1, 41],
          [2, 1],
          [3, 'the time'],
          [10, serverTime],
        ]);
      }),
    );
  const late = transport(NOW + 3600);
  await assert.rejects(late.call('GetUpdate', BODY, 1000), { error: 'UNAUTHENTICATED' });
  assert.deepEqual(created, [NOW, NOW + 3600]);
  await assert.rejects(late.call('GetUpdate', BODY, 1000), { error: 'UNAUTHENTICATED' });
  assert.equal(created.length, 3);
  await assert.rejects(transport(NOW - 3601).call('GetUpdate', BODY, 1000), { error: 'BAD_CLOCK' });
  assert.equal(created.length, 4);
});

test('it says that TLS may end in a proxy, unless its owner knows better', async () => {
  // R10.3-4; the client refuses what a proxy could read.
  const answer = (): Response => new Response();
  for (const direct of [false, true]) {
    const { proxied } = await new EdgeTransport(settings(answer, { direct })).meet();
    assert.equal(proxied, !direct);
  }
  assert.equal((await new EdgeTransport(settings(answer)).meet()).proxied, true);
});

test('what an error detail says is believed, and nothing else of a failed answer', async () => {
  const cases: readonly [Response, string][] = [
    [
      failure(500, [
        [1, 43],
        [2, 1],
        [3, 'over'],
      ]),
      'SESSION_OVER',
    ],
    [new Response('busy', { status: 429 }), 'OVERLOADED'],
    [new Response('<html>', { status: 502 }), 'UNREACHABLE'],
    [new Response('{"details":[{"value":"%"}]}', { status: 400 }), 'UNREACHABLE'],
    [new Response('null', { status: 404 }), 'UNREACHABLE'],
    [new Response(new Uint8Array((4 << 20) + 1)), 'BAD_ENCODING'],
  ];
  for (const [response, error] of cases) {
    const transport = new EdgeTransport(settings(() => response));
    await assert.rejects(transport.call('GetUpdate', BODY, 1000), { error });
  }
});

test('what cannot be reached, and what is closed, may come back', async () => {
  const broken = settings(() => {
    throw new TypeError('Failed to fetch');
  });
  await assert.rejects(new EdgeTransport(broken).call('GetUpdate', BODY, 1000), {
    error: 'UNREACHABLE',
    retryAfterMs: 1000,
  });
  const silent = settings(
    (_url, request) =>
      new Promise((_, reject) => {
        request.signal!.addEventListener('abort', () => {
          reject(request.signal!.reason as Error);
        });
      }),
  );
  const transport = new EdgeTransport(silent);
  const call = transport.call('GetUpdate', BODY, 100_000);
  await new Promise((go) => setImmediate(go));
  transport.close();
  await assert.rejects(call, { error: 'UNREACHABLE' });
});

test('an authority in another form is refused', () => {
  for (const authority of ['Sums.example.org', 'a:443', 'a/b', 'a:0', '', 'a b', 'x@y']) {
    assert.throws(
      () => new EdgeTransport(settings(() => new Response(), { authority })),
      SecAggError,
    );
  }
});
