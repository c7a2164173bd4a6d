/**
 * A client of secagg for browsers and Node.
 *
 * What needs Node (files, gRPC) is in `@secagg/client/node`.
 */

export * from './bitmap.js';
export * from './bytes.js';
export * from './client.js';
export * from './crypto.js';
export * from './encoding.js';
export * from './enrolment.js';
export * from './errors.js';
export * from './graph.js';
export * from './hash.js';
export * from './indexeddb-store.js';
export * from './json.js';
export * from './masks.js';
export * from './messages.js';
export * from './noise-block.js';
export * from './noise-stream.js';
export * from './packing.js';
export * from './parameters.js';
export * from './policy.js';
export * from './protobuf.js';
export * from './rational.js';
export * from './receipt.js';
export * from './roster-checks.js';
export * from './rotation.js';
export * from './rule.js';
export * from './secrets.js';
export * from './session.js';
export * from './shamir.js';
export * from './share-channel.js';
export * from './signer.js';
export * from './store.js';
export * from './transport.js';
export * from './tree.js';
export * from './vectors.js';
export * from './x509.js';
