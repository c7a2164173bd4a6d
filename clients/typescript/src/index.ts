/**
 * A client of secagg for browsers and Node.
 *
 * {@link Client} takes part in sessions of one task over a {@link Transport} and keeps what
 * it must in a {@link Store}. {@link Session} is the protocol alone, for programs that bring
 * both themselves. What needs Node (files, gRPC) is in `@secagg/client/node`.
 */

export { type Bytes, fromHex, toHex } from './bytes.js';
export {
  Client,
  type ClientSettings,
  type Contribution,
  type Enrolment,
  type Input,
  type InputVector,
  type NoiseEncoder,
  type SumEstimate,
  type Visit,
  type VisitOptions,
} from './client.js';
export { EdgeTransport, type EdgeSettings } from './edge.js';
export { VectorEncoder } from './encoding.js';
export {
  type Credential,
  decodeHeldCredential,
  encodeHeldCredential,
  type HeldCredential,
  makeEnrolmentRequest,
  VerifiedCredentials,
} from './enrolment.js';
export { ERROR_CODES, type ErrorName, SecAggError } from './errors.js';
export { IndexedDbStore, type IndexedDbSettings, type Mark } from './indexeddb-store.js';
export type { Residues } from './masks.js';
export { type Ending, KINDS } from './messages.js';
export type { SessionNoise } from './noise-block.js';
export type { Offer, ProfileName, Trust } from './parameters.js';
export {
  checkOffer,
  type ClientPolicy,
  DEFAULT_LIMITS,
  DEFAULT_POLICY,
  type OfferContext,
  type PrivacyLimits,
} from './policy.js';
export { writeReceipt } from './receipt.js';
export {
  type ChargeOutcome,
  type InputRequest,
  type NoiseTables,
  type Outgoing,
  Session,
  type SessionNoiseKeys,
  type SessionOptions,
  type SessionRecord,
  type SessionState,
  type Step,
} from './session.js';
export { SeedSigner, type Signer, WebCryptoSigner } from './signer.js';
export { type Budget, type ClientState, MemoryStore, type Store } from './store.js';
export { AggregatorCalls, type ProvenAggregator, type Transport } from './transport.js';
export { centre, encodeIntegers, type IntegerVector } from './vectors.js';
