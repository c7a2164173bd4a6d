/**
 * One client in one session: the state machine of PROTOCOL §5, without input or output.
 *
 * 1. Nothing is sent by this class. Each call returns a {@link Step}; commit
 *    `session.record` durably before anything of the step leaves (§12).
 * 2. A client that starts again resumes from its record, and sends the same bytes or none.
 * 3. A call that finds a violation throws, and leaves a record without secrets: commit it.
 */

import { decodeSet, encodeSet } from './bitmap.js';
import { blob, concat, equal, Reader, u32, type Bytes } from './bytes.js';
import { agree, ed25519Verify, x25519PublicKey } from './crypto.js';
import {
  encodeCredential,
  readCredential,
  checkRevocationList,
  signedAdvert,
  signedBundles,
  signedConsistency,
  VerifiedCredentials,
  type Credential,
} from './enrolment.js';
import { ERROR_CODES, refuse, SecAggError } from './errors.js';
import { abscissaOf, corruptHolders, cutProbability, holdersOf } from './graph.js';
import { expand, sha256, tag } from './hash.js';
import {
  addMask,
  openMaskStream,
  pairMaskKey,
  selfMaskKey,
  wordBits,
  type Residues,
} from './masks.js';
import {
  BUNDLE_BYTES,
  decodeAbort,
  decodeDelivery,
  decodeQuorum,
  decodeRelease,
  encodeAdvert,
  encodeComplaint,
  encodeIdPart,
  encodeKeyPart,
  KINDS,
  noiseCommitment,
  seedCommitment,
  type Delivery,
  type Ending,
} from './messages.js';
import {
  checkNoiseLosses,
  layersTakenBack,
  noiseContext,
  readSessionNoise,
  shareNoise,
  type MechanismNumbers,
  type NoiseShare,
  type SessionNoise,
} from './noise-block.js';
import { pack } from './packing.js';
import {
  checkOfferRules,
  decodeOffer,
  leastSurvivors,
  openingContext,
  quorumOf,
  rosterContext,
  sharingContext,
  survivorContext,
  viewOf,
  type Offer,
} from './parameters.js';
import {
  checkRoster,
  reopenRoster,
  type CheckedRoster,
  type RosterContext,
} from './roster-checks.js';
import { deriveSecrets, type DeriveSecrets, type SessionSecrets } from './secrets.js';
import { encodeShare, NO_SHARE, shareAt } from './shamir.js';
import { openBundle, sealBundle, type HeldShares } from './share-channel.js';
import type { Signer } from './signer.js';

/**
 * How far a client has come.
 *
 * `left`: it found a violation, or its time was over; `ended`: the aggregator has told the end.
 */
export type SessionState =
  'advertised' | 'shared' | 'delivered' | 'bound' | 'signed' | 'answered' | 'ended' | 'left';

/** What becomes of a charge (R5.6-3): never made, given back, or kept for good. */
export type ChargeOutcome = 'never' | 'returned' | 'kept';

/** Everything that a client keeps of a session. Holds secrets until `answer` is there. */
export interface SessionRecord {
  readonly version: 1;
  readonly offer: Bytes;
  readonly sid: Bytes;
  readonly identity: string;
  /** Encoded credential; null in profile 1. */
  readonly credential: Bytes | null;
  /** Revocation list that the offer names; null for none. */
  readonly revocations: Bytes | null;
  state: SessionState;
  /** State in which the session ended or was left, which decides about the charge. */
  last: SessionState;
  /** 32 secret bytes; null once the answer is there, and at the end. */
  seed: Bytes | null;
  advert: Bytes;
  roster: Bytes | null;
  rosterDigest: Bytes | null;
  bundles: Bytes | null;
  /** Null again once the answer is there: it holds sealed shares of others. */
  delivery: Bytes | null;
  deliveryDigest: Bytes | null;
  /** Bitmap of U2. */
  u2: Bytes | null;
  /** Indices of dealers whose bundles were of no use and whose complaint is not acknowledged. */
  complaints: { readonly accused: number; readonly code: number }[];
  /** The packed masked input; null until it is bound. */
  upload: Bytes | null;
  uploadDigest: Bytes | null;
  /** Bitmap of U3. */
  u3: Bytes | null;
  signature: Bytes | null;
  quorum: Bytes | null;
  quorumDigest: Bytes | null;
  answer: Bytes | null;
  /** The message that ended the session, with its kind. */
  ending: { readonly kind: number; readonly message: Bytes } | null;
  /** Code of the violation for which this client left; 0 for none. */
  violation: number;
  charge: ChargeOutcome;
}

/** A message that is to leave; of an upload these are the packed bytes. */
export interface Outgoing {
  /** Number of §3.4, see {@link KINDS}. */
  readonly kind: number;
  readonly message: Bytes;
}

/** What a client needs to encode and bind its input. */
export interface InputRequest {
  /** View of the session, which the aggregator is asked with first (R5.3-14). */
  readonly view: Bytes;
  readonly sid: Bytes;
  readonly suite: number;
  readonly modulus: bigint;
  readonly dim: number;
  /** What to add; null for an exact sum. */
  readonly noise: SessionNoiseKeys | null;
}

/** Noise of this client in this session. The keys are secret. */
export interface SessionNoiseKeys extends SessionNoise {
  readonly share: NoiseShare;
  /** key_0 of §6.7. */
  readonly ownKey: Bytes;
  /** key_(i+1) of each layer. */
  readonly layerKeys: readonly Bytes[];
}

/** What follows from a call. */
export interface Step {
  /** Messages that may leave once the record is committed. */
  readonly send: readonly Outgoing[];
  /** Set when an input is to be bound: call {@link Session.bind}. */
  readonly needsInput: InputRequest | null;
  /** Set when the aggregator has told the end. */
  readonly ended: Ending | null;
}

const NOTHING: Step = { send: [], needsInput: null, ended: null };

/** What knows mechanisms and samplers, by which views differ (§3.5, §14). */
export interface NoiseTables {
  /**
   * Refuses a mechanism, a rule or a sampler that the client does not have (R14.2-1 to
   * R14.2-3, R14.8-3).
   */
  check(session: SessionNoise): void;
  /** Hashes of base and layers, hexadecimal; the same for equal variances. */
  tables(block: SessionNoise, share: NoiseShare): readonly string[];
  /** Coordinates that vectors of a mechanism are encoded to. */
  encodedLength(mechanism: MechanismNumbers): number;
}

/** What a session needs of its client. */
export interface SessionOptions {
  /** Identity key; null where no profile needs one. */
  readonly signer: Signer | null;
  /** What knows the samplers; null refuses tasks with noise. */
  readonly noise: NoiseTables | null;
  /** Credentials that were verified before. */
  readonly verified?: VerifiedCredentials;
  /** How secrets follow from the seed; tests dictate them. */
  readonly secrets?: DeriveSecrets;
}

/** One client in one session. */
export class Session {
  readonly offer: Offer;
  readonly sid: Bytes;
  readonly #ctx0: Bytes;
  readonly #options: SessionOptions;
  readonly #verified: VerifiedCredentials;
  readonly #revoked: ReadonlySet<number>;
  readonly #noise: SessionNoise | null;
  readonly #record: SessionRecord;
  #secrets: SessionSecrets | null;
  #roster: CheckedRoster | null = null;
  #ctx1: Bytes | null = null;
  #agreed = new Map<number, Bytes>();
  #ownShares: HeldShares | null = null;
  #delivery: Delivery | null = null;
  #held = new Map<number, HeldShares>();
  #share: NoiseShare | null = null;
  #ctx2: Bytes | null = null;
  #busy = false;

  private constructor(record: SessionRecord, options: SessionOptions) {
    this.#record = record;
    this.#options = options;
    this.#verified = options.verified ?? new VerifiedCredentials();
    this.offer = decodeOffer(record.offer);
    checkOfferRules(this.offer);
    const p = this.offer.parameters;
    const context = openingContext(this.offer);
    this.sid = context.sid;
    this.#ctx0 = context.ctx0;
    const list = p.trust === null ? null : checkRevocationList(p.trust, record.revocations);
    this.#revoked = new Set(list?.serials ?? []);
    const tables = options.noise;
    this.#noise = readSessionNoise(
      this.offer,
      tables === null ? null : (mechanism) => tables.encodedLength(mechanism),
    );
    if (this.#noise !== null && tables === null) {
      refuse('POLICY_VIOLATION', 'R5.3-1', 'this client was made without noise');
    }
    this.#secrets =
      record.seed === null
        ? null
        : (options.secrets ?? deriveSecrets)(record.seed, this.sid, p.threshold, p.noiseLayers);
  }

  /** Opens a session: draws the advert of an offer that the client has checked. */
  static async begin(
    offer: Bytes,
    client: {
      readonly identity: string;
      readonly credential: Credential | null;
      readonly revocations: Bytes | null;
      /** 32 fresh bytes. */
      readonly seed: Bytes;
    },
    options: SessionOptions,
  ): Promise<{ session: Session; step: Step }> {
    const record: SessionRecord = {
      version: 1,
      offer,
      sid: openingContext(decodeOffer(offer)).sid,
      identity: client.identity,
      credential: client.credential === null ? null : encodeCredential(client.credential),
      revocations: client.revocations,
      state: 'advertised',
      last: 'advertised',
      seed: new Uint8Array(client.seed),
      advert: new Uint8Array(),
      roster: null,
      rosterDigest: null,
      bundles: null,
      delivery: null,
      deliveryDigest: null,
      u2: null,
      complaints: [],
      upload: null,
      uploadDigest: null,
      u3: null,
      signature: null,
      quorum: null,
      quorumDigest: null,
      answer: null,
      ending: null,
      violation: 0,
      charge: 'never',
    };
    const session = new Session(record, options);
    session.#checkSigner();
    if (session.#noise !== null) options.noise!.check(session.#noise);
    await session.#advertise();
    return { session, step: session.#sending(KINDS.advert, record.advert) };
  }

  /** Opens a session again from its record, and says what is to be sent again. */
  static resume(record: SessionRecord, options: SessionOptions): { session: Session; step: Step } {
    const session = new Session(record, options);
    session.#checkSigner();
    if (record.roster !== null)
      session.#enter(reopenRoster(record.roster, session.#rosterContext()));
    if (record.u2 !== null) session.#closeSharing(record.u2);
    if (record.delivery !== null) session.#openDelivery(record.delivery);
    return { session, step: session.#repeat() };
  }

  /** What to commit before anything of a step leaves; a copy. */
  get record(): SessionRecord {
    const { seed, complaints } = this.#record;
    // The seed is overwritten when the session ends; a copy may still be on its way to the disk.
    return {
      ...this.#record,
      seed: seed === null ? null : new Uint8Array(seed),
      complaints: [...complaints],
    };
  }

  /** How far this client has come. */
  get state(): SessionState {
    return this.#record.state;
  }

  /** Top of the tree over the roster, once there is one; for the receipt. */
  get rosterTop(): Bytes | null {
    return this.#roster?.top ?? null;
  }

  /** Clients in the roster; 0 before there is one. */
  get rosterSize(): number {
    return this.#roster?.roster.size ?? 0;
  }

  /** Whether an input is bound: from then on the session costs budget. */
  get inputBound(): boolean {
    return this.#record.uploadDigest !== null;
  }

  /** Whether the session is over for this client. */
  get over(): boolean {
    return this.#record.state === 'ended' || this.#record.state === 'left';
  }

  /** The round that this client is in, as {@link Transport} asks for updates. */
  get round(): number {
    return {
      advertised: 1,
      shared: 3,
      delivered: 4,
      bound: 4,
      signed: 5,
      answered: 6,
      ended: 7,
      left: 7,
    }[this.#record.state];
  }

  /** Says whether the session's end has passed for this client (R5-7). */
  expired(now: bigint): boolean {
    return now >= this.offer.sessionEnd && this.#record.answer === null;
  }

  /**
   * Takes a message of the aggregator.
   *
   * @param kind Its number: roster, delivery, survivors, quorum, release or abort.
   * @throws SecAggError The message violates the protocol; this client has left.
   */
  async receive(kind: number, message: Uint8Array): Promise<Step> {
    return this.#exclusive(async () => {
      if (this.over) return NOTHING;
      const bytes = new Uint8Array(message);
      switch (kind) {
        case KINDS.roster:
          return this.#takeRoster(bytes);
        case KINDS.delivery:
          return this.#takeDelivery(bytes);
        case KINDS.survivors:
          return this.#takeSurvivors(bytes);
        case KINDS.quorum:
          return this.#takeQuorum(bytes);
        case KINDS.release:
        case KINDS.abort:
          return this.#takeEnding(kind, bytes);
        default:
          return refuse('UNEXPECTED_MESSAGE', 'R5-9', `a message of the kind ${kind}`);
      }
    });
  }

  /**
   * Masks an encoded input and binds it: no other one can be sent in this session (R5.3-2).
   *
   * @param input Residues of the modulus, noise included (R5.3-1).
   * @returns The upload. Commit the record, and the charge, before its first byte leaves.
   */
  async bind(input: Residues): Promise<Step> {
    return this.#exclusive(async () => {
      const p = this.offer.parameters;
      if (this.#record.state !== 'delivered') {
        throw new TypeError('an input is bound once, after the delivery');
      }
      const wide = wordBits(p.modulus) === 64;
      if (input.length !== p.dim || input instanceof BigUint64Array !== wide) {
        throw new TypeError(`an input has ${p.dim} residues of ${p.modulus}`);
      }
      const masked = input.slice() as Residues;
      await this.#mask(masked);
      this.#record.upload = pack(masked, p.modulus);
      this.#record.uploadDigest = sha256(this.#record.upload);
      this.#enterState('bound');
      this.#record.charge = 'kept';
      return this.#sending(KINDS.upload, this.#record.upload);
    });
  }

  /** Notes that the aggregator has acknowledged the complaint about a dealer. */
  complaintAcknowledged(accused: number): void {
    this.#record.complaints = this.#record.complaints.filter((one) => one.accused !== accused);
  }

  /**
   * Leaves the session, for a deadline, another view, or an aggregator out of reach.
   *
   * The secrets go; a charge that was made is kept (R5.6-3, "not told").
   */
  leave(code: number): void {
    this.#record.last = this.#record.state;
    this.#record.state = 'left';
    this.#record.violation = code;
    this.#erase();
  }

  async #exclusive(call: () => Promise<Step>): Promise<Step> {
    if (this.#busy) throw new TypeError('the session is working on another message');
    this.#busy = true;
    try {
      return await call();
    } catch (error) {
      if (error instanceof SecAggError && !this.over) this.leave(error.code);
      throw error;
    } finally {
      this.#busy = false;
    }
  }

  #enterState(state: SessionState): void {
    this.#record.state = state;
    this.#record.last = state;
  }

  #sending(kind: number, message: Bytes): Step {
    return { send: [{ kind, message }], needsInput: null, ended: null };
  }

  #erase(): void {
    const record = this.#record;
    record.seed?.fill(0);
    record.seed = null;
    record.delivery = null;
    record.upload = null;
    const secrets = this.#secrets;
    if (secrets !== null) {
      for (const secret of [secrets.channelKey, secrets.maskKey, secrets.selfMaskSeed]) {
        secret.fill(0);
      }
      for (const seed of secrets.noiseSeeds) seed.fill(0);
    }
    this.#secrets = null;
    this.#agreed.clear();
    this.#held.clear();
    this.#ownShares = null;
  }

  /** What this client has said last, to be said again after a restart. */
  #repeat(): Step {
    const record = this.#record;
    const complaints = this.#complaints();
    switch (record.state) {
      case 'advertised':
        return this.#sending(KINDS.advert, record.advert);
      case 'shared':
        return this.#sending(KINDS.bundles, record.bundles!);
      case 'delivered':
        return { send: complaints, needsInput: this.#inputRequest(), ended: null };
      case 'bound':
        return {
          send: [...complaints, { kind: KINDS.upload, message: record.upload! }],
          needsInput: null,
          ended: null,
        };
      case 'signed':
        return this.#sending(KINDS.consistency, record.signature!);
      case 'answered':
        return this.#sending(KINDS.shares, record.answer!);
      default:
        return NOTHING;
    }
  }

  /**
   * Compares a message with the one that was taken for its round (R5-8).
   *
   * @returns Whether it is the same one.
   */
  #taken(digest: Bytes | null, message: Bytes, rule: string, what: string): boolean {
    if (digest === null) return false;
    if (equal(digest, sha256(message))) return true;
    return refuse('EQUIVOCATION', rule, `the aggregator has sent two different ${what}`);
  }

  // AdvertiseKeys

  async #advertise(): Promise<void> {
    const { suite, profile } = this.offer.parameters;
    const { identity } = this.#record;
    const secrets = this.#secrets!;
    const credential =
      this.#record.credential === null
        ? null
        : readCredential(new Reader(this.#record.credential, 'the credential'));
    if ((profile === 1) !== (credential === null)) {
      throw new TypeError('a credential is for the profile malicious-server, and only for it');
    }
    const idPart = encodeIdPart(identity, credential);
    const keyPart = encodeKeyPart(
      x25519PublicKey(secrets.channelKey),
      x25519PublicKey(secrets.maskKey),
      seedCommitment(suite, this.sid, identity, secrets.selfMaskSeed),
      secrets.noiseSeeds.map((seed, i) => noiseCommitment(suite, this.sid, identity, i, seed)),
    );
    const signature =
      credential === null
        ? new Uint8Array()
        : await this.#sign(signedAdvert(suite, this.#ctx0, idPart, keyPart));
    this.#record.advert = encodeAdvert(idPart, keyPart, signature);
  }

  /** A session is continued with the identity key that it was begun with. */
  #checkSigner(): void {
    const { credential } = this.#record;
    if (credential === null || this.over) return;
    const { key } = readCredential(new Reader(credential, 'the credential'));
    if (this.#options.signer === null || !equal(this.#options.signer.publicKey, key)) {
      throw new SecAggError('BAD_CREDENTIAL', 'the identity key is not that of the credential', {
        rule: 'R10.2-1',
        nextStep: 'Put the identity of the open session in its place again.',
      });
    }
  }

  #sign(message: Bytes): Promise<Bytes> {
    if (this.#options.signer === null) throw new TypeError('the session has no identity key');
    return this.#options.signer.sign(message);
  }

  // ShareKeys

  #rosterContext(): RosterContext {
    return {
      offer: this.offer,
      ctx0: this.#ctx0,
      ownAdvert: this.#record.advert,
      revoked: this.#revoked,
      verified: this.#verified,
    };
  }

  #enter(checked: CheckedRoster): void {
    const { roster, index, neighbours, top } = checked;
    const { suite } = this.offer.parameters;
    this.#roster = checked;
    this.#ctx1 = rosterContext(suite, this.#ctx0, roster.size, top, roster.graphSeed);
    if (this.#secrets === null) return;
    for (const v of neighbours) {
      const advert = roster.adverts.get(v)!;
      this.#agreed.set(v, agree(this.#secrets.channelKey, advert.channelKey));
    }
    if (this.offer.parameters.degree === 0) {
      this.#ownShares = this.#deal([index], this.#secrets.coefficients(this.#ctx1)).get(index)!;
    }
  }

  #deal(
    holders: readonly number[],
    coefficients: ReturnType<SessionSecrets['coefficients']>,
  ): Map<number, HeldShares> {
    const { degree } = this.offer.parameters;
    const { roster, index } = this.#roster!;
    const secrets = this.#secrets!;
    return new Map(
      holders.map((v) => {
        const abscissa = abscissaOf(roster.size, degree, index, v);
        return [
          v,
          {
            key: encodeShare(shareAt(secrets.maskKey, coefficients.key, abscissa)),
            seed: encodeShare(shareAt(secrets.selfMaskSeed, coefficients.seed, abscissa)),
          },
        ];
      }),
    );
  }

  async #takeRoster(message: Bytes): Promise<Step> {
    if (this.#taken(this.#record.rosterDigest, message, 'R5-8', 'rosters')) return NOTHING;
    const checked = checkRoster(message, this.#rosterContext());
    const p = this.offer.parameters;
    this.#enter(checked);
    const { index, neighbours } = checked;
    const ctx1 = this.#ctx1!;
    const shares = this.#deal(neighbours, this.#secrets!.coefficients(ctx1));
    const bundles = concat(
      ...neighbours.map((v) =>
        sealBundle(
          p.suite,
          this.sid,
          ctx1,
          index,
          v,
          abscissaOf(checked.roster.size, p.degree, index, v),
          this.#agreed.get(v)!,
          shares.get(v)!,
        ),
      ),
    );
    const signature =
      p.profile === 1
        ? new Uint8Array()
        : await this.#sign(signedBundles(p.suite, ctx1, index, sha256(bundles)));
    this.#record.roster = message;
    this.#record.rosterDigest = sha256(message);
    this.#record.bundles = concat(bundles, signature);
    this.#enterState('shared');
    return this.#sending(KINDS.bundles, this.#record.bundles);
  }

  // MaskedInputCollection

  #unexpected(what: string, rule = 'R5-9'): never {
    return refuse('UNEXPECTED_MESSAGE', rule, `the aggregator has sent ${what} before its round`);
  }

  async #takeDelivery(message: Bytes): Promise<Step> {
    if (this.#taken(this.#record.deliveryDigest, message, 'R5-8', 'deliveries')) return NOTHING;
    if (this.#record.state !== 'shared') this.#unexpected('a delivery');
    const p = this.offer.parameters;
    const { roster, index, neighbours } = this.#roster!;
    const delivery = decodeDelivery(message, roster.size);
    const shareHolders = new Set(delivery.shareHolders);
    if (!shareHolders.has(index)) {
      refuse('SELF_MISSING', 'R5.3-4', 'the aggregator has left this client out of U2');
    }
    const holders = holdersOf(roster.size, p.degree, index).filter((v) => shareHolders.has(v));
    if (shareHolders.size < leastSurvivors(p) || holders.length < p.threshold) {
      refuse('U2_TOO_SMALL', 'R5.3-5', `only ${shareHolders.size} clients have shared`);
    }
    const dealers = neighbours.filter((v) => shareHolders.has(v));
    if (delivery.bundles.length !== dealers.length * BUNDLE_BYTES) {
      refuse(
        'BAD_SHARE_CIPHERTEXT',
        'R5.3-6',
        'the delivery has not one bundle for each neighbour',
      );
    }
    this.#closeSharing(delivery.bitmap);
    const complaints = this.#openDelivery(message);
    const useful = this.#held.size + (p.degree === 0 ? 1 : 0);
    if (useful < p.threshold) {
      refuse('BAD_SHARE_CIPHERTEXT', 'R5.3-11', `only ${useful} bundles are of use`);
    }
    this.#record.delivery = message;
    this.#record.deliveryDigest = sha256(message);
    this.#record.u2 = delivery.bitmap;
    this.#record.complaints = complaints;
    this.#enterState('delivered');
    return { send: this.#complaints(), needsInput: this.#inputRequest(), ended: null };
  }

  /** Follows from U2: the share of noise and ctx2. */
  #closeSharing(u2: Bytes): void {
    const { suite } = this.offer.parameters;
    const shareHolders = decodeSet(this.#roster!.roster.size, u2, 'U2').length;
    let context: Bytes = new Uint8Array();
    if (this.#noise !== null) {
      this.#share = shareNoise(this.#noise.block.noise, shareHolders);
      const tables = this.#options.noise!.tables(this.#noise, this.#share);
      context = noiseContext(suite, this.#share, tables);
    }
    this.#ctx2 = sharingContext(suite, this.#ctx1!, new Uint8Array(), u2, context);
  }

  /** Opens all bundles, ascending; returns a complaint for each that is of no use (R5.3-7). */
  #openDelivery(message: Bytes): { accused: number; code: number }[] {
    const p = this.offer.parameters;
    const { roster, index, neighbours } = this.#roster!;
    const delivery = decodeDelivery(message, roster.size);
    const shareHolders = new Set(delivery.shareHolders);
    this.#delivery = delivery;
    this.#held.clear();
    const complaints: { accused: number; code: number }[] = [];
    neighbours
      .filter((v) => shareHolders.has(v))
      .forEach((v, i) => {
        const opened = openBundle(
          p.suite,
          this.sid,
          this.#ctx1!,
          v,
          index,
          abscissaOf(roster.size, p.degree, v, index),
          this.#agreed.get(v)!,
          delivery.bundles.subarray(i * BUNDLE_BYTES, (i + 1) * BUNDLE_BYTES),
        );
        if ('error' in opened) complaints.push({ accused: v, code: ERROR_CODES[opened.error] });
        else this.#held.set(v, opened);
      });
    return complaints;
  }

  #complaints(): Outgoing[] {
    return this.#record.complaints.map(({ accused, code }) => ({
      kind: KINDS.complaint,
      message: encodeComplaint(code, accused),
    }));
  }

  /** The view of this session (R5.3-14), once U2 is known. */
  get view(): Bytes {
    if (this.#ctx2 === null) throw new TypeError('the view is known from the delivery on');
    return viewOf(this.offer.parameters.suite, this.#ctx2);
  }

  #inputRequest(): InputRequest {
    const p = this.offer.parameters;
    return {
      view: this.view,
      sid: this.sid,
      suite: p.suite,
      modulus: p.modulus,
      dim: p.dim,
      noise: this.#noiseKeys(),
    };
  }

  #noiseKeys(): SessionNoiseKeys | null {
    if (this.#noise === null) return null;
    const { suite } = this.offer.parameters;
    const ctx2 = this.#ctx2!;
    const secrets = this.#secrets!;
    return {
      ...this.#noise,
      share: this.#share!,
      ownKey: secrets.noiseKey(ctx2),
      layerKeys: secrets.noiseSeeds.map((seed, i) =>
        expand(seed, concat(tag('client', 'noise', suite), blob(ctx2), u32(i + 1)), 32),
      ),
    };
  }

  async #mask(vector: Residues): Promise<void> {
    const p = this.offer.parameters;
    const { roster, index, neighbours } = this.#roster!;
    const secrets = this.#secrets!;
    const ctx2 = this.#ctx2!;
    const own = selfMaskKey(p.suite, this.sid, ctx2, index, secrets.selfMaskSeed);
    await addMask(vector, p.modulus, await openMaskStream(own), 1);
    const shareHolders = new Set(this.#delivery!.shareHolders);
    for (const v of neighbours) {
      if (!shareHolders.has(v)) continue;
      const secret = agree(secrets.maskKey, roster.adverts.get(v)!.maskKey);
      const key = pairMaskKey(p.suite, this.sid, ctx2, index, v, secret);
      await addMask(vector, p.modulus, await openMaskStream(key), index < v ? 1 : -1);
    }
  }

  // ConsistencyCheck and Unmasking

  async #takeSurvivors(message: Bytes): Promise<Step> {
    const record = this.#record;
    if (record.u3 !== null) {
      if (equal(record.u3, message)) return NOTHING;
      refuse('EQUIVOCATION', 'R5.4-5', 'the aggregator has sent two different sets of survivors');
    }
    if (record.state !== 'bound') this.#unexpected('survivors');
    this.#checkSurvivors(message);
    const p = this.offer.parameters;
    if (p.profile === 1) {
      record.u3 = message;
      return this.#reveal();
    }
    const ctx3 = survivorContext(p.suite, this.#ctx2!, message);
    const signature = await this.#sign(signedConsistency(p.suite, ctx3));
    record.u3 = message;
    record.signature = signature;
    this.#enterState('signed');
    return this.#sending(KINDS.consistency, signature);
  }

  #checkSurvivors(message: Bytes): void {
    const p = this.offer.parameters;
    const { roster, index } = this.#roster!;
    const survivors = new Set(decodeSet(roster.size, message, 'the set of survivors'));
    const shareHolders = new Set(this.#delivery!.shareHolders);
    if ([...survivors].some((v) => !shareHolders.has(v)) || !survivors.has(index)) {
      refuse(
        'U3_INVALID',
        'R5.4-2',
        'the survivors are not in U2, or this client is not among them',
      );
    }
    if (survivors.size < leastSurvivors(p)) {
      refuse('U3_TOO_SMALL', 'R5.4-3', `only ${survivors.size} inputs are left`);
    }
    const dropouts = shareHolders.size - survivors.size;
    if (dropouts > p.maxDropouts || roster.size - survivors.size > p.maxLosses) {
      refuse('TOO_MANY_DROPOUTS', 'R5.4-4', `${dropouts} clients were lost after they had shared`);
    }
    if (this.#share !== null) checkNoiseLosses(this.#share, dropouts);
    if (p.degree > 0) {
      const limit = 2 ** -(p.graphBits + 1);
      const places = Array.from({ length: roster.size }, (_, i) => survivors.has(i));
      if (
        corruptHolders(roster.size, p.degree, p.threshold, p.colluders) > limit ||
        cutProbability(places, p.degree, p.colluders) > limit
      ) {
        refuse('TOO_MANY_DROPOUTS', 'R5.5-7', 'colluders and losses may cut the ring of survivors');
      }
    }
  }

  async #takeQuorum(message: Bytes): Promise<Step> {
    const record = this.#record;
    if (this.#taken(record.quorumDigest, message, 'R5-8', 'quorums')) return NOTHING;
    if (record.state !== 'signed') this.#unexpected('a quorum', 'R5.5-10');
    this.#checkQuorum(message);
    record.quorum = message;
    record.quorumDigest = sha256(message);
    return this.#reveal();
  }

  #checkQuorum(message: Bytes): void {
    const p = this.offer.parameters;
    const { roster } = this.#roster!;
    const quorum = decodeQuorum(message);
    const survivors = new Set(decodeSet(roster.size, this.#record.u3!, 'U3'));
    if (quorum.signatures.length < quorumOf(p)) {
      refuse('NO_QUORUM', 'R5.5-2', `only ${quorum.signatures.length} clients have signed`);
    }
    if (quorum.signatures.some(({ index }) => !survivors.has(index))) {
      refuse('U3_INVALID', 'R5.5-3', 'a client has signed that is not in U3');
    }
    const keyOf = (index: number): Bytes => roster.adverts.get(index)!.credential!.key;
    const ctx3 = survivorContext(p.suite, this.#ctx2!, this.#record.u3!);
    const signed = signedConsistency(p.suite, ctx3);
    for (const { index, signature } of quorum.signatures) {
      if (!ed25519Verify(keyOf(index), signed, signature)) {
        refuse('BAD_SIGNATURE', 'R5.5-4', `client ${index} has not signed these sets`);
      }
      survivors.delete(index);
    }
    const rest = [...survivors].sort((a, b) => a - b);
    if (rest.join() !== quorum.dealings.map(({ index }) => index).join()) {
      refuse('U3_INVALID', 'R5.3-13', 'the quorum does not show the dealings of all other members');
    }
    for (const { index, digest, signature } of quorum.dealings) {
      if (
        !ed25519Verify(keyOf(index), signedBundles(p.suite, this.#ctx1!, index, digest), signature)
      ) {
        refuse('BAD_SIGNATURE', 'R5.3-13', `client ${index} has not dealt under this roster`);
      }
    }
  }

  /** Makes the answer, and forgets what else could be derived (R5.5-5, R5.5-9). */
  #reveal(): Step {
    const p = this.offer.parameters;
    const record = this.#record;
    const { roster, index, neighbours } = this.#roster!;
    const survivors = new Set(decodeSet(roster.size, record.u3!, 'U3'));
    const shareHolders = new Set(this.#delivery!.shareHolders);
    const dealers = (p.degree === 0 ? [...neighbours, index] : [...neighbours])
      .filter((v) => shareHolders.has(v))
      .sort((a, b) => a - b);
    const sharesOf = (v: number): HeldShares | undefined =>
      v === index ? this.#ownShares! : this.#held.get(v);
    const absent = dealers.flatMap((v, i) => (sharesOf(v) === undefined ? [i] : []));
    const shares = dealers.map((v) => {
      const held = sharesOf(v);
      if (held === undefined) return NO_SHARE;
      return survivors.has(v) ? held.seed : held.key;
    });
    const losses = shareHolders.size - survivors.size;
    const layers =
      this.#share === null ? [] : layersTakenBack(this.#noise!.block.noise, this.#share, losses);
    record.answer = concat(
      encodeSet(dealers.length, absent),
      ...shares,
      ...layers.map((i) => this.#secrets!.noiseSeeds[i]!),
    );
    this.#enterState('answered');
    this.#erase();
    return this.#sending(KINDS.shares, record.answer);
  }

  // The end

  #takeEnding(kind: number, message: Bytes): Step {
    const ending = kind === KINDS.release ? decodeRelease(message) : decodeAbort(message);
    this.#checkEnding(ending);
    const record = this.#record;
    const profile1 = this.offer.parameters.profile === 1;
    if (record.state === 'bound' && profile1 && ending.fate !== 2) record.charge = 'returned';
    record.ending = { kind, message };
    record.last = record.state;
    record.state = 'ended';
    this.#erase();
    return { send: [], needsInput: null, ended: ending };
  }

  #checkEnding(ending: Ending): void {
    const p = this.offer.parameters;
    const { state, u3 } = this.#record;
    const told = state === 'signed' || state === 'answered';
    if (ending.kind === 'release' && !this.inputBound) {
      refuse(
        'UNEXPECTED_MESSAGE',
        'R5.6-1',
        'a sum is released, and this client has sent no input',
      );
    }
    if (told && ending.fate !== 2) {
      refuse('U3_INVALID', 'R5.6-2', 'the aggregator says that this client was not in U3');
    }
    if (ending.kind !== 'release') return;
    const size = this.#roster!.roster.size;
    const shareHolders = decodeSet(size, this.#record.u2!, 'U2').length;
    const { survivors } = ending;
    if (ending.fate !== 2 || survivors < leastSurvivors(p) || survivors > shareHolders) {
      refuse('U3_INVALID', 'R5.6-4', `a sum of ${survivors} inputs cannot be of this session`);
    }
    if (told && survivors !== decodeSet(size, u3!, 'U3').length) {
      refuse('U3_INVALID', 'R5.6-2', 'the sum is of another number of inputs than U3 has');
    }
    if (p.profile !== 1 && !told) {
      refuse('SESSION_OVER', 'R5.6-4', 'a sum was released before this client had signed');
    }
  }
}
