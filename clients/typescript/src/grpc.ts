/** gRPC over mutually authenticated TLS 1.3, for Node. */

import { readFileSync } from 'node:fs';
import { connect, createSecureContext, type PeerCertificate } from 'node:tls';

import * as grpc from '@grpc/grpc-js';

import { copy, type Bytes } from './bytes.js';
import { SecAggError } from './errors.js';
import { decodeErrorDetail } from './protobuf.js';
import type { ProvenAggregator, Transport } from './transport.js';
import {
  certificateNames,
  checkServer,
  firstCertificate,
  isForHost,
  partyOf,
  type Party,
} from './x509.js';

/** Where an aggregator is, and who this client is. */
export interface GrpcSettings {
  /** Host and port, for example "sums.example.org:7400" or "[::1]:7400". */
  readonly server: string;
  /** Path of the authority's certificates, PEM. */
  readonly ca: string;
  /** Path of this client's certificate, PEM, the leaf first. */
  readonly certificate: string;
  /** Path of its private key, PEM. */
  readonly key: string;
  /**
   * Name of the one aggregator to accept, wherever it listens. Without it the first one
   * counts whose certificate has the host of `server`, until the transport is made again.
   */
  readonly aggregator?: string;
}

const SERVICE = '/secagg.v1.SecAggService/';
const HANDSHAKE_MS = 5000;
/** Files of certificates are smaller (PROTOCOL §10.2). */
const MOST_PEM_BYTES = 64 * 1024;
/** Node reports these where the same handshake would fail again. */
const LASTING =
  /^(?:CERT_|ERR_SSL|ERR_TLS|UNABLE_TO_|SELF_SIGNED|DEPTH_ZERO|INVALID_|HOSTNAME_|EPROTO)/;

function readPem(path: string): string {
  const bytes = readFileSync(path);
  if (bytes.length > MOST_PEM_BYTES) {
    throw new SecAggError('BAD_CERTIFICATE', `the file ${path} is too large for certificates`);
  }
  return bytes.toString('latin1');
}

/** Calls an aggregator by gRPC. Every connection is checked, see {@link GrpcSettings.aggregator}. */
export class GrpcTransport implements Transport {
  readonly identity: string;
  readonly #own: Party;
  readonly #host: string;
  readonly #port: number;
  readonly #context: ReturnType<typeof createSecureContext>;
  readonly #client: grpc.Client;
  #aggregator: string | undefined;

  /** Reads the files; nothing is connected yet. */
  constructor(settings: GrpcSettings) {
    const match = /^(?:\[([0-9a-fA-F:]+)\]|([^:]+)):(\d{1,5})$/.exec(settings.server);
    if (match === null) {
      throw new SecAggError('BAD_SETTINGS', `"${settings.server}" is not host:port`);
    }
    this.#host = match[1] ?? match[2]!;
    this.#port = Number(match[3]);
    this.#aggregator = settings.aggregator;
    const certificate = readPem(settings.certificate);
    this.#own = partyOf(certificateNames(firstCertificate(certificate)));
    if (this.#own.role !== 'client') {
      throw new SecAggError('BAD_CERTIFICATE', "this client's certificate is not of a client");
    }
    this.identity = this.#own.name;
    this.#context = createSecureContext({
      ca: readPem(settings.ca),
      cert: certificate,
      key: readPem(settings.key),
      minVersion: 'TLSv1.3',
    });
    this.#client = new grpc.Client(
      settings.server,
      grpc.credentials.createFromSecureContext(this.#context, {
        checkServerIdentity: (_host, peer) => this.#check(peer),
      }),
      {
        // A channel of another client of this process has another identity.
        'grpc.use_local_subchannel_pool': 1,
        'grpc.keepalive_time_ms': 60_000,
        'grpc.keepalive_timeout_ms': 60_000,
        'grpc.max_receive_message_length': 4 << 20,
        'grpc.max_reconnect_backoff_ms': 5000,
        'grpc.enable_retries': 0,
      },
    );
  }

  /** Checks the certificate of one connection; nothing but the handshake has left (R10.1-3). */
  #check(peer: PeerCertificate): Error | undefined {
    try {
      const names = certificateNames(peer.raw);
      const party = checkServer(names, this.#own.trustDomain, this.#aggregator);
      if (this.#aggregator === undefined && !isForHost(party, this.#host)) {
        throw new SecAggError(
          'BAD_CERTIFICATE',
          `the certificate of the aggregator is not for ${this.#host}`,
          { nextStep: 'Name the aggregator in the settings, or correct the address.' },
        );
      }
      this.#aggregator = party.name;
      return undefined;
    } catch (error) {
      return error as Error;
    }
  }

  meet(): Promise<ProvenAggregator> {
    return new Promise((resolve, reject) => {
      const socket = connect({
        host: this.#host,
        port: this.#port,
        secureContext: this.#context,
        ALPNProtocols: ['h2'],
        servername: /^[0-9.]+$|:/.test(this.#host) ? '' : this.#host,
        checkServerIdentity: (_host, peer) => this.#check(peer),
      });
      const fail = (error: Error): void => {
        clearTimeout(timer);
        socket.destroy();
        if (error instanceof SecAggError) {
          reject(error);
          return;
        }
        const code = (error as NodeJS.ErrnoException).code ?? error.message;
        const lasting = LASTING.test(code);
        reject(
          new SecAggError(
            lasting ? 'BAD_CERTIFICATE' : 'UNREACHABLE',
            `no TLS connection to ${this.#host}:${this.#port}: ${code}`,
          ),
        );
      };
      const timer = setTimeout(() => {
        fail(new SecAggError('UNREACHABLE', `${this.#host}:${this.#port} does not answer`));
      }, HANDSHAKE_MS);
      socket.once('error', fail);
      socket.once('secureConnect', () => {
        if (socket.alpnProtocol !== 'h2') {
          fail(new SecAggError('BAD_CERTIFICATE', 'the aggregator does not speak HTTP/2'));
          return;
        }
        clearTimeout(timer);
        socket.destroy();
        resolve({ aggregator: this.#aggregator!, trustDomain: this.#own.trustDomain });
      });
    });
  }

  call(method: string, request: Bytes, timeoutMs: number): Promise<Bytes> {
    return new Promise((resolve, reject) => {
      this.#client.makeUnaryRequest(
        SERVICE + method,
        (bytes: Uint8Array) => Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength),
        (bytes: Buffer) => copy(bytes),
        request,
        new grpc.Metadata(),
        { deadline: Date.now() + timeoutMs },
        (error, answer) => {
          if (error !== null) reject(errorOf(error));
          else resolve(answer ?? new Uint8Array());
        },
      );
    });
  }

  close(): void {
    this.#client.close();
  }
}

function errorOf(error: grpc.ServiceError): SecAggError {
  const trailer = error.metadata.get('secagg-error-bin')[0];
  const detail = trailer instanceof Buffer ? decodeErrorDetail(trailer) : undefined;
  if (detail === undefined) {
    return new SecAggError(
      'UNREACHABLE',
      `no answer of the aggregator: gRPC says ${grpc.status[error.code]}`,
    );
  }
  return new SecAggError(detail.error, `the aggregator says: ${detail.message}`, {
    nextStep: detail.nextStep,
    ...(detail.retryAfterMs === undefined ? {} : { retryAfterMs: detail.retryAfterMs }),
    ...(detail.nextOffset === undefined ? {} : { nextOffset: detail.nextOffset }),
  });
}
