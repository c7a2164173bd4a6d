/** What needs Node: files of an identity, state in a directory, gRPC. */

export * from './file-store.js';
export * from './files.js';
export * from './grpc.js';
