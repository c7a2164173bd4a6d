/** What a client checks of a roster or of its neighbourhood (PROTOCOL §5.2). */

import { equal, toHex, type Bytes } from './bytes.js';
import { ed25519Verify, isX25519Key } from './crypto.js';
import { checkCredential, printable, signedAdvert, type VerifiedCredentials } from './enrolment.js';
import { refuse } from './errors.js';
import { corruptHolders, neighboursOf } from './graph.js';
import { decodeRoster, rosterLeaf, rosterNode, type Advert, type Roster } from './messages.js';
import { quorumOf, type Offer, type Parameters } from './parameters.js';
import { topFromProof, treeTop } from './tree.js';

/** A roster that passed, with the reader's place in it. */
export interface CheckedRoster {
  readonly roster: Roster;
  /** The reader's own index. */
  readonly index: number;
  /** Indices of those whom the reader shares with, ascending. */
  readonly neighbours: readonly number[];
  /** Top of the tree over the adverts. */
  readonly top: Bytes;
}

/** What a roster is checked against. */
export interface RosterContext {
  readonly offer: Offer;
  readonly ctx0: Bytes;
  /** The reader's advert as it was sent. */
  readonly ownAdvert: Bytes;
  /** Serials of the revocation list that the offer names. */
  readonly revoked: ReadonlySet<number>;
  readonly verified: VerifiedCredentials;
}

/** Checks a roster or a neighbourhood, in the order of §5.2. */
export function checkRoster(message: Uint8Array, context: RosterContext): CheckedRoster {
  const p = context.offer.parameters;
  const roster = decodeRoster(message, p.noiseLayers);
  const checked = roster.whole
    ? checkWhole(roster, context, p)
    : checkNeighbourhood(roster, context, p);
  checkForms(roster, p);
  checkKeys(roster);
  if (p.profile !== 1) checkSignatures(roster, context);
  if (p.profile !== 1 && 2 * quorumOf(p) <= roster.size + p.colluders) {
    refuse('POLICY_VIOLATION', 'R5.2-7', 'two quorums of the roster may have no client in common');
  }
  if (roster.whole) {
    const ring = p.degree > 0;
    if ((roster.graphSeed.length === 32) !== ring || (ring && roster.size < p.degree + 2)) {
      refuse('POLICY_VIOLATION', 'R5.2-10', 'the roster is not one of the graph that was offered');
    }
  }
  if (p.degree > 0) {
    const chance = corruptHolders(roster.size, p.degree, p.threshold, p.colluders);
    if (chance > 2 ** -(p.graphBits + 1)) {
      refuse('POLICY_VIOLATION', 'R5.2-8', 'colluders reach the ring of the roster');
    }
  }
  return checked;
}

/** Rebuilds what {@link checkRoster} has returned, for a roster that was accepted before. */
export function reopenRoster(message: Uint8Array, context: RosterContext): CheckedRoster {
  const p = context.offer.parameters;
  const roster = decodeRoster(message, p.noiseLayers);
  return roster.whole ? checkWhole(roster, context, p) : checkNeighbourhood(roster, context, p);
}

function checkSize(size: number, p: Parameters, rule: string): void {
  if (size < p.minClients) refuse('ROSTER_TOO_SMALL', rule, `the roster has ${size} clients`);
  if (size > p.maxClients) refuse('ROSTER_TOO_LARGE', rule, `the roster has ${size} clients`);
}

function leaves(roster: Roster, context: RosterContext): Map<number, Bytes> {
  const suite = context.offer.parameters.suite;
  return new Map(
    [...roster.adverts].map(([index, advert]) => [
      index,
      rosterLeaf(suite, context.ctx0, index, advert),
    ]),
  );
}

function checkWhole(roster: Roster, context: RosterContext, p: Parameters): CheckedRoster {
  checkSize(roster.size, p, 'R5.2-2');
  const own = [...roster.encoded].find(([, advert]) => equal(advert, context.ownAdvert));
  if (own === undefined) {
    refuse('SELF_MISSING', 'R5.2-3', "this client's advert is not in the roster as it was sent");
  }
  return {
    roster,
    index: own[0],
    neighbours: neighboursOf(roster.size, p.degree, own[0]),
    top: treeTop([...leaves(roster, context).values()], rosterNode(p.suite)),
  };
}

function checkNeighbourhood(roster: Roster, context: RosterContext, p: Parameters): CheckedRoster {
  if (p.profile !== 1) {
    refuse('POLICY_VIOLATION', 'R5.2-26', 'a neighbourhood is no roster where the server may lie');
  }
  checkSize(roster.size, p, 'R5.2-21');
  const index = roster.reader!;
  const own = roster.encoded.get(index);
  if (own === undefined || !equal(own, context.ownAdvert)) {
    refuse('SELF_MISSING', 'R5.2-22', "this client's advert is not where the neighbourhood says");
  }
  if (p.degree === 0 || roster.size < p.degree + 2) {
    refuse('POLICY_VIOLATION', 'R5.2-25', 'a neighbourhood of a graph that is no ring');
  }
  const neighbours = neighboursOf(roster.size, p.degree, index);
  const due = [...neighbours, index].sort((a, b) => a - b);
  if ([...roster.adverts.keys()].join() !== due.join()) {
    refuse('BAD_PROOF', 'R5.2-23', 'a neighbourhood with other clients than the neighbours');
  }
  const top = topFromProof(roster.size, leaves(roster, context), roster.proof, rosterNode(p.suite));
  return { roster, index, neighbours, top };
}

function checkForms(roster: Roster, p: Parameters): void {
  for (const advert of roster.adverts.values()) {
    const signed = advert.signature.length === 64;
    const name = printable(advert.identity);
    if (p.profile === 1 && (signed || advert.credential !== null)) {
      refuse('BAD_SIGNATURE', 'R5.2-9', `the advert of ${name} is signed, and nothing checks it`);
    }
    if (p.profile !== 1 && !(signed && advert.credential !== null)) {
      refuse('BAD_CREDENTIAL', 'R5.2-9', `the advert of ${name} lacks credential or signature`);
    }
  }
}

function keysOf(advert: Advert): readonly Bytes[] {
  const keys = [advert.channelKey, advert.maskKey];
  return advert.credential === null ? keys : [...keys, advert.credential.key];
}

function checkKeys(roster: Roster): void {
  for (const advert of roster.adverts.values()) {
    if (![advert.channelKey, advert.maskKey].every(isX25519Key)) {
      refuse('BAD_PUBLIC_KEY', 'R5.2-4', `a key of ${printable(advert.identity)} is of no use`);
    }
  }
  const seen = new Set<string>();
  for (const advert of roster.adverts.values()) {
    for (const key of keysOf(advert)) {
      const id = toHex(key);
      if (seen.has(id)) {
        refuse('DUPLICATE_KEY', 'R5.2-5', `${printable(advert.identity)} has a key of another use`);
      }
      seen.add(id);
    }
  }
}

function checkSignatures(roster: Roster, context: RosterContext): void {
  const { offer, ctx0, revoked, verified } = context;
  const trust = offer.parameters.trust!;
  for (const { identity, credential } of roster.adverts.values()) {
    checkCredential(trust, identity, credential!, offer.sessionEnd, revoked, verified);
  }
  for (const advert of roster.adverts.values()) {
    const signed = signedAdvert(offer.parameters.suite, ctx0, advert.idPart, advert.keyPart);
    if (!ed25519Verify(advert.credential!.key, signed, advert.signature)) {
      refuse('BAD_SIGNATURE', 'R5.2-6', `${printable(advert.identity)} has not signed its advert`);
    }
  }
}
