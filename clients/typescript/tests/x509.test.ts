/** Names in certificates, of recorded rows and of a real certificate. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  certificateNames,
  checkServer,
  firstCertificate,
  isForHost,
  partyOf,
  SecAggError,
} from '../src/internals.js';
import { eachRow } from './vectors.js';

eachRow('enrolment', 'certificates', 26, (row) => {
  const names = { uris: row.uris, hosts: row.dns, addresses: [] };
  const read = () => {
    if (row.to === 'client') return checkServer(names, 'example.org', row.told ?? undefined);
    // A server's part: whom it would take the caller for.
    const party = partyOf(names);
    if (party.role === 'client' && party.trustDomain === 'example.org') return party;
    throw new SecAggError('BAD_CERTIFICATE', 'not a client of this trust domain');
  };
  if (row.success) assert.equal(read().name, row.who);
  else assert.throws(read, SecAggError);
});

// secagg://example.org/server/sums-1, its DNS name, sums.example.org, 127.0.0.1 and ::1.
const PEM = `-----BEGIN CERTIFICATE-----
MIIB9DCCAZqgAwIBAgIUeHPJCA1tbZHybvZxETobUThWEtswCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBeDAeFw0yNjExMjMwODI1MTBaFw0yNjExMjQwODI1MTBaMAwx
CjAIBgNVBAMMAXgwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARaKzhdkF6mJoy4
oYwO45+x7feZ9TsK8uxaa1uS1Ko05ysQIbJ0vOgiJ/72otNYZ4Eyqawgr/DSqnDn
0Pvz8Tz4o4HZMIHWMB0GA1UdDgQWBBRCu2IX5fTlDXYITHsokDKei+zi3jAfBgNV
HSMEGDAWgBRCu2IX5fTlDXYITHsokDKei+zi3jAPBgNVHRMBAf8EBTADAQH/MIGC
BgNVHREEezB5hiJzZWNhZ2c6Ly9leGFtcGxlLm9yZy9zZXJ2ZXIvc3Vtcy0xgilz
dW1zLTEuZXhhbXBsZS5vcmcuc2VydmVyLnNlY2FnZy5pbnRlcm5hbIIQc3Vtcy5l
eGFtcGxlLm9yZ4cEfwAAAYcQAAAAAAAAAAAAAAAAAAAAATAKBggqhkjOPQQDAgNI
ADBFAiBji/YcG+nvz7rtIwBUw5VB56XIMafRsG8YZyab3bFvNgIhALZcTNi87GUU
i2XL24x4p+r25hqgp6X43ity+murdFBG
-----END CERTIFICATE-----`;

test('names are read from the bytes of a certificate', () => {
  const names = certificateNames(firstCertificate(PEM));
  assert.deepEqual(names.uris, ['secagg://example.org/server/sums-1']);
  assert.deepEqual(names.hosts, ['sums-1.example.org.server.secagg.internal', 'sums.example.org']);
  const party = checkServer(names, 'example.org', 'sums-1');
  for (const host of [
    'sums.example.org',
    'SUMS.example.org',
    '127.0.0.1',
    '::1',
    '0:0:0:0:0:0:0:1',
  ]) {
    assert.ok(isForHost(party, host), host);
  }
  for (const host of [
    'example.org',
    'x.sums.example.org',
    '127.0.0.2',
    '::2',
    '1::1::1',
    '',
    '256.0.0.1',
  ]) {
    assert.ok(!isForHost(party, host), host);
  }
});

test('damaged certificates are refused, and none ends in another error', () => {
  const der = firstCertificate(PEM);
  let refused = 0;
  for (let i = 0; i < der.length; i++) {
    for (const bit of [1, 0x80]) {
      const damaged = der.slice();
      damaged[i]! ^= bit;
      try {
        partyOf(certificateNames(damaged));
      } catch (error) {
        assert.ok(error instanceof SecAggError, `byte ${i}: ${String(error)}`);
        refused++;
      }
    }
    assert.throws(() => certificateNames(der.slice(0, i)), SecAggError);
  }
  // Keys, times and signatures are for the TLS library.
  assert.ok(refused > 100, `${refused} refused`);
  // A NUL in the name: some libraries would end it there.
  const nul = der.slice();
  const at = Buffer.from(der).indexOf('sums-1', 0, 'latin1');
  nul[at + 4] = 0;
  assert.throws(() => partyOf(certificateNames(nul)), SecAggError);
});
