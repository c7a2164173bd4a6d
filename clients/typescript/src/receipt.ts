/** A client's receipt of a session that has ended (PROTOCOL §5.8). */

import { decodeSet } from './bitmap.js';
import { blob, concat, u16, u32, u64, u8, utf8, type Bytes } from './bytes.js';
import { ERROR_CODES } from './errors.js';
import { hash } from './hash.js';
import { decodeAbort, decodeRelease, decodeRoster, KINDS } from './messages.js';
import { noiseCertificate, readSessionNoise, shareNoise } from './noise-block.js';
import { decodeOffer, type Offer } from './parameters.js';
import type { SessionRecord } from './session.js';

const EMPTY: Bytes = new Uint8Array();

interface Outcome {
  readonly outcome: number;
  readonly code: number;
  readonly sumHash: Bytes;
  readonly size: bigint;
}

function without(code: number): Outcome {
  return { outcome: 1, code, sumHash: new Uint8Array(32), size: 0n };
}

function outcomeOf(record: SessionRecord): Outcome {
  if (record.ending === null) return without(record.violation || ERROR_CODES.DEADLINE);
  const { kind, message } = record.ending;
  if (kind !== KINDS.release) return without(ERROR_CODES[decodeAbort(message).code]);
  // For the sets of a sum that it has not answered for, a client has vouched in nothing.
  if (record.answer === null) return without(ERROR_CODES.SESSION_OVER);
  const { sumHash, size } = decodeRelease(message);
  return { outcome: 0, code: 0, sumHash, size };
}

function viewOf(record: SessionRecord, top: Bytes | null, offer: Offer): Bytes {
  if (record.roster === null) return u8(0);
  const roster = decodeRoster(record.roster, offer.parameters.noiseLayers);
  if (roster.whole) return concat(u8(1), blob(record.roster));
  return concat(u8(2), u32(roster.size), top!, blob(roster.graphSeed));
}

function certificateOf(record: SessionRecord, offer: Offer, size: number): Bytes {
  if (record.u2 === null || record.u3 === null || offer.parameters.noiseLayers === 0) return EMPTY;
  const { noise } = readSessionNoise(offer, null)!.block;
  const share = shareNoise(noise, decodeSet(size, record.u2, 'U2').length);
  return noiseCertificate(noise, share, decodeSet(size, record.u3, 'U3').length, null);
}

/**
 * Writes the receipt of a session from what its client received and accepted.
 *
 * `secagg sessions verify` verifies it offline.
 *
 * @param record A session that has ended, or that the client has left.
 * @param top Top of the tree over the roster, where the client has read its neighbourhood.
 */
export function writeReceipt(record: SessionRecord, top: Bytes | null): Bytes {
  const offer = decodeOffer(record.offer);
  const { outcome, code, sumHash, size } = outcomeOf(record);
  const clients =
    record.roster === null ? 0 : decodeRoster(record.roster, offer.parameters.noiseLayers).size;
  const content = concat(
    utf8('SecAgg-receipt/1'),
    u8(1),
    blob(record.offer),
    viewOf(record, top, offer),
    blob(EMPTY),
    blob(record.u2 ?? EMPTY),
    blob(record.u3 ?? EMPTY),
    blob(record.quorum ?? EMPTY),
    u8(outcome),
    u16(code),
    sumHash,
    u64(size),
    blob(certificateOf(record, offer, clients)),
    u32(0),
  );
  return concat(content, hash(0, 'receipt', content));
}
