/** Files of an identity (PROTOCOL §10.2), for Node. */

import { chmod, mkdir, open, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

import { copy, equal, fromHex, toHex, type Bytes } from './bytes.js';
import type { Enrolment } from './client.js';
import { ed25519PublicKey, isEd25519Key } from './crypto.js';
import {
  checkCredential,
  decodeHeldCredential,
  makeEnrolmentRequest,
  VerifiedCredentials,
} from './enrolment.js';
import { SecAggError } from './errors.js';
import { SeedSigner } from './signer.js';

/** Reads a key text, `ed25519:` and 64 digits (BAD_SETTINGS for any other). */
export function parseKeyText(text: string): Bytes {
  const digits = /^ed25519:([0-9a-f]{64})$/.exec(text)?.[1];
  if (digits === undefined || !isEd25519Key(fromHex(digits))) {
    throw new SecAggError('BAD_SETTINGS', 'a public key is "ed25519:" and 64 digits of 0-9 a-f', {
      rule: 'R10.2-1',
    });
  }
  return fromHex(digits);
}

/** Writes a public key as settings and screens have it. */
export function keyText(key: Uint8Array): string {
  return `ed25519:${toHex(key)}`;
}

async function readSeed(path: string): Promise<Bytes> {
  const seed = await readFile(path);
  if (seed.length !== 32) {
    throw new SecAggError('BAD_CREDENTIAL', `${path} has not exactly 32 bytes`, {
      rule: 'R10.2-1',
    });
  }
  return copy(seed);
}

/**
 * Makes an identity key in a directory, and the request that goes to the issuer.
 *
 * `identity.seed` (mode 0600) stays; an existing one is never overwritten.
 *
 * @param madeAt Seconds since 1970.
 * @returns The public key as text, which the issuer has read out before it signs.
 */
export async function createIdentity(
  directory: string,
  trustDomain: string,
  name: string,
  madeAt = BigInt(Math.floor(Date.now() / 1000)),
): Promise<string> {
  await mkdir(directory, { recursive: true, mode: 0o700 });
  const { seed } = SeedSigner.generate();
  const handle = await open(join(directory, 'identity.seed'), 'wx', 0o600);
  try {
    await handle.writeFile(seed);
    await handle.sync();
  } finally {
    await handle.close();
  }
  return writeRequest(directory, trustDomain, name, madeAt);
}

/** Writes a new request for the identity key that a directory has, as for a renewal. */
export async function writeRequest(
  directory: string,
  trustDomain: string,
  name: string,
  madeAt = BigInt(Math.floor(Date.now() / 1000)),
): Promise<string> {
  const signer = new SeedSigner(await readSeed(join(directory, 'identity.seed')));
  const request = await makeEnrolmentRequest(trustDomain, name, madeAt, signer);
  const path = join(directory, 'request.bin');
  await writeFile(`${path}.new`, request, { mode: 0o644 });
  await chmod(`${path}.new`, 0o644);
  await rename(`${path}.new`, path);
  return keyText(signer.publicKey);
}

/** Paths of an enrolment, and whom it is of. */
export interface EnrolmentFiles {
  /** `identity.seed`. */
  readonly identity: string;
  /** `credential.bin`. */
  readonly credential: string;
  /** Public key of the issuer, as the issuer says it: `ed25519:` and 64 digits. */
  readonly enrolmentKey: string;
  readonly trustDomain: string;
  readonly name: string;
}

/**
 * Reads and checks an enrolment (R10.2-1). Give it to a client as
 * `enrolment: () => readEnrolment(files)`: a renewed credential is then taken up with the
 * next session.
 *
 * @param now Seconds since 1970.
 */
export async function readEnrolment(
  files: EnrolmentFiles,
  now = BigInt(Math.floor(Date.now() / 1000)),
): Promise<Enrolment> {
  const enrolmentKey = parseKeyText(files.enrolmentKey);
  const seed = await readSeed(files.identity);
  const credential = decodeHeldCredential(copy(await readFile(files.credential)));
  const fits =
    credential.name === files.name &&
    credential.trustDomain === files.trustDomain &&
    equal(credential.credential.key, ed25519PublicKey(seed));
  if (!fits) {
    throw new SecAggError('BAD_CREDENTIAL', `${files.credential} is of another client or key`, {
      rule: 'R10.2-1',
      nextStep: 'Have this identity enrolled, and put its credential there.',
    });
  }
  const trust = {
    trustDomain: files.trustDomain,
    enrolmentKey,
    revocationNumber: 0,
    revocationHash: new Uint8Array(32),
  };
  const verified = new VerifiedCredentials(1);
  checkCredential(trust, files.name, credential.credential, now, new Set(), verified);
  return { signer: new SeedSigner(seed), credential, enrolmentKey };
}
