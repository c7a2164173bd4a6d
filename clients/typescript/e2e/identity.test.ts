/** An identity that is made here, and enrolled, renewed and revoked by the issuer's commands. */

import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { test } from 'node:test';

import { checkRevocationList, sha256 } from '../src/internals.js';
import { createIdentity, parseKeyText, readEnrolment, writeRequest } from '../src/node.js';
import { Deployment, SECAGG } from './harness.js';

const missing = existsSync(SECAGG) ? false : `there is no ${SECAGG}`;

test(
  'the issuer signs, renews and revokes what this client asks for',
  { skip: missing },
  async () => {
    const deployment = await Deployment.make(1);
    try {
      const issuer = async (...args: string[]): Promise<string> => {
        const ended = await deployment.secagg('pki', 'enrol', ...args);
        assert.equal(ended.code, 0, ended.output + ended.errors);
        return ended.output;
      };
      const begun = await issuer('init', 'issuer', '--trust-domain', 'example.org', '--json');
      const enrolmentKey = /ed25519:[0-9a-f]{64}/.exec(begun)![0];
      const directory = deployment.path('identity');
      const key = await createIdentity(directory, 'example.org', 'hospital-a');
      const sign = ['sign', 'issuer', 'identity/request.bin', '--days', '90', '--key', key];
      const other = await deployment.secagg('pki', 'enrol', ...sign, '--name', 'hospital-b');
      assert.notEqual(other.code, 0);
      sign.push('--name', 'hospital-a');
      await issuer(...sign, '--output', 'identity/credential.bin');
      const files = {
        identity: deployment.path('identity/identity.seed'),
        credential: deployment.path('identity/credential.bin'),
        enrolmentKey,
        trustDomain: 'example.org',
        name: 'hospital-a',
      };
      const first = (await readEnrolment(files)).credential.credential;
      // A clock that is most of an hour behind accepts a new credential, too.
      await readEnrolment(files, BigInt(Math.floor(Date.now() / 1000) - 3500));
      // The same key asked for again, and a renewal that needs nothing from the client.
      assert.equal(await writeRequest(directory, 'example.org', 'hospital-a'), key);
      await issuer(...sign, '--output', 'identity/credential.bin');
      const second = (await readEnrolment(files)).credential.credential;
      await issuer('renew', 'issuer', 'hospital-a', '--output', 'identity/credential.bin');
      const third = (await readEnrolment(files)).credential.credential;
      assert.equal(new Set([first.serial, second.serial, third.serial]).size, 3);
      await issuer('revoke', 'issuer', String(third.serial));
      const list = new Uint8Array(readFileSync(deployment.path('issuer/revocations.bin')));
      const trust = {
        trustDomain: 'example.org',
        enrolmentKey: parseKeyText(enrolmentKey),
        revocationNumber: 1,
        revocationHash: sha256(list),
      };
      // All credentials of the key are taken back.
      assert.deepEqual(
        checkRevocationList(trust, list)!.serials,
        [first.serial, second.serial, third.serial].sort((a, b) => a - b),
      );
    } finally {
      await deployment.close();
    }
  },
);
