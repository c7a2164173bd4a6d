/** The recorded sessions of the vectors, and clients that are brought into their states. */

import {
  decodeOffer,
  KINDS,
  readCredential,
  Reader,
  SeedSigner,
  Session,
  VectorEncoder,
  zeroResidues,
  type Coefficients,
  type Residues,
  type SessionOptions,
  type SessionSecrets,
  type Step,
} from '../src/internals.js';
import { hex, readVectors, type Row } from './vectors.js';

export const SESSIONS = new Map<string, Row>(
  readVectors('sessions')['sessions']!.map((session: Row) => [session.name, session]),
);
export const ENCODER = new VectorEncoder();
const PROFILE_3 = ['sparse', 'sparse-layered'];
export const isProfile3 = (row: Row): boolean => PROFILE_3.includes(row.session ?? row.name);

export function clientOf(session: Row, name: string): Row {
  return session.clients.find((client: Row) => client.identity === name);
}

export function optionsOf(client: Row): SessionOptions {
  const secrets: SessionSecrets = {
    channelKey: hex(client.channel_private_key),
    maskKey: hex(client.mask_private_key),
    selfMaskSeed: hex(client.self_mask_seed),
    noiseSeeds: client.noise_seeds.map(hex),
    coefficients: (): { key: Coefficients; seed: Coefficients } => ({
      key: client.key_coefficients,
      seed: client.seed_coefficients,
    }),
    noiseKey: () => new Uint8Array(32),
  };
  return {
    signer: client.identity_seed === '' ? null : new SeedSigner(hex(client.identity_seed)),
    noise: ENCODER,
    secrets: () => secrets,
  };
}

export function inputOf(session: Row, client: Row): Residues {
  const { modulus, dim } = decodeOffer(hex(session.offer)).parameters;
  const vector = zeroResidues(modulus, dim);
  client.input.forEach((entry: string, i: number) => {
    if (vector instanceof BigUint64Array) vector[i] = BigInt(entry);
    else vector[i] = Number(entry);
  });
  return vector;
}

export async function begin(session: Row, client: Row): Promise<{ session: Session; step: Step }> {
  return Session.begin(
    hex(session.offer),
    {
      identity: client.identity,
      credential:
        client.credential === ''
          ? null
          : readCredential(new Reader(hex(client.credential), 'the credential')),
      revocations: session.revocations === null ? null : hex(session.revocations),
      seed: new Uint8Array(32).fill(1),
    },
    optionsOf(client),
  );
}

/** Brings a client to where it has taken the recorded messages up to a round. */
export async function advance(recorded: Row, client: Row, after: number): Promise<Session> {
  const { session } = await begin(recorded, client);
  if (after >= 3) await session.receive(KINDS.roster, hex(recorded.roster));
  if (after >= 4) {
    await session.receive(KINDS.delivery, hex(client.delivery));
    await session.bind(inputOf(recorded, client));
  }
  if (after >= 5) await session.receive(KINDS.survivors, hex(recorded.u3));
  if (after >= 6 && recorded.quorum !== null) {
    await session.receive(KINDS.quorum, hex(recorded.quorum));
  }
  return session;
}

const KIND_OF_ROUND: Record<number, number> = { 3: KINDS.roster, 4: KINDS.delivery };

/** The kind of a message that opens a round of a profile. */
export function kindOpening(recorded: Row, round: number): number {
  if (round === 5) return KINDS.survivors;
  if (round === 6) return recorded.quorum === null ? KINDS.survivors : KINDS.quorum;
  return KIND_OF_ROUND[round]!;
}
