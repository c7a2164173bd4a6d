/** encodings.json, enrolment.json, secrets.json, masks.json and noise.json, row by row. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';

import {
  agree,
  checkCredential,
  checkOfferRules,
  checkRevocationList,
  compareRational,
  concat,
  decodeAdvert,
  decodeEnrolmentRequest,
  decodeHeldCredential,
  decodeOffer,
  decodeRoster,
  decodeSet,
  decodeShare,
  ed25519Verify,
  encodeAdvert,
  encodeHeldCredential,
  encodeIdPart,
  encodeKeyPart,
  encodeNeighbourhood,
  encodeOffer,
  encodeRoster,
  encodeSet,
  encodeShare,
  enrolmentRequestHolds,
  equal,
  expand,
  formatRational,
  hash,
  KeyStream,
  layersTakenBack,
  makeEnrolmentRequest,
  maskSlice,
  neighboursOf,
  noiseCommitment,
  noiseContext,
  open,
  openMaskStream,
  openingContext,
  pack,
  packedSize,
  pairMaskKey,
  parseRational,
  readCredential,
  Reader,
  readNoiseTerms,
  readSessionNoise,
  readTrust,
  rebuildSecret,
  ringOrder,
  rosterContext,
  rosterLeaf,
  rosterNode,
  seal,
  seedCommitment,
  SeedSigner,
  selfMaskKey,
  shareAt,
  shareNoise,
  sharingContext,
  signedAdvert,
  survivorContext,
  tag,
  toHex,
  topFromProof,
  treeProof,
  treeTop,
  u32,
  unpack,
  utf8,
  VerifiedCredentials,
  x25519PublicKey,
  zeroResidues,
  addMask,
  type Advert,
  type NoiseRule,
  type Offer,
  type Trust,
} from '../src/internals.js';
import { sealBundle, openBundle, shareKey, shareAssociatedData } from '../src/share-channel.js';
import { eachRow, hex, readVectors, refusedWith, type Row } from './vectors.js';

const trustOf = (bytes: string): Trust => {
  const reader = new Reader(hex(bytes), 'the trust');
  const trust = readTrust(reader);
  reader.end();
  return trust;
};

function offerOf(fields: Row): Offer {
  const p = fields.parameters;
  return {
    aggregator: fields.aggregator,
    taskId: fields.task_id,
    sessionNumber: BigInt(fields.session_number),
    serverNonce: hex(fields.server_nonce),
    sessionEnd: BigInt(fields.session_end),
    payloadHash: hex(fields.payload_hash),
    noiseTerms: utf8(fields.noise_terms),
    parameters: {
      version: p.version,
      profile: p.profile,
      suite: p.suite,
      modulus: BigInt(p.modulus),
      dim: p.dim,
      minClients: p.min_clients,
      maxClients: p.max_clients,
      threshold: p.threshold,
      degree: p.degree,
      minSurvivors: p.min_survivors,
      maxDropouts: p.max_dropouts,
      maxLosses: p.max_losses,
      colluders: p.colluders,
      noiseLayers: p.noise_layers,
      noiseBlock: utf8(p.noise_block),
      deadlines: p.deadlines,
      trust:
        p.trust === null
          ? null
          : {
              trustDomain: p.trust.trust_domain,
              enrolmentKey: hex(p.trust.enrolment_key),
              revocationNumber: p.trust.revocation_number,
              revocationHash: hex(p.trust.revocation_hash),
            },
      graphBits: p.graph_bits,
      inCap: p.in_cap,
      ownQuorum: p.own_quorum,
    },
  };
}

eachRow('encodings', 'offers', 8, (row) => {
  const offer = offerOf(row.fields);
  assert.equal(toHex(encodeOffer(offer)), row.offer);
  assert.deepEqual(decodeOffer(hex(row.offer)), offer);
  const context = openingContext(offer);
  assert.equal(toHex(context.configurationHash), row.cfg_hash);
  assert.equal(toHex(context.sid), row.sid);
  assert.equal(toHex(context.ctx0), row.ctx0);
});

eachRow('encodings', 'context_chains', 2, (row) => {
  assert.equal(toHex(tag('client', 'share bundle', row.suite)), row.tag);
  const ctx1 = rosterContext(
    row.suite,
    hex(row.contexts[0]),
    row.count,
    hex(row.top),
    hex(row.graph_seed),
  );
  const ctx2 = sharingContext(
    row.suite,
    ctx1,
    hex(row.edge_root),
    hex(row.u2),
    hex(row.noise_context),
  );
  const ctx3 = survivorContext(row.suite, ctx2, hex(row.u3));
  assert.deepEqual([ctx1, ctx2, ctx3].map(toHex), row.contexts.slice(1));
});

const leafOf = (index: number) => new Uint8Array(32).fill(index);

eachRow('encodings', 'trees', 40, (row) => {
  const node = rosterNode(row.suite);
  const leaves = Array.from({ length: row.leaves }, (_, i) => leafOf(i));
  assert.equal(toHex(treeTop(leaves, node)), row.top);
  if (row.shown === undefined) return;
  const proof = treeProof(leaves, row.shown, node);
  assert.deepEqual(proof.map(toHex), row.proof);
  const shown = new Map<number, Uint8Array<ArrayBuffer>>(
    row.shown.map((i: number) => [i, leafOf(i)]),
  );
  assert.equal(toHex(topFromProof(row.leaves, shown, proof, node)), row.top);
});

eachRow('encodings', 'proofs', 7, async (row) => {
  const shown = new Map<number, Uint8Array<ArrayBuffer>>(
    row.shown.map((i: number) => [i, leafOf(i)]),
  );
  const top = () => topFromProof(row.leaves, shown, row.proof.map(hex), rosterNode(1));
  if (row.success === false) await refusedWith(row.code, top);
  else assert.equal(toHex(top()), row.top);
});

eachRow('encodings', 'sets', 11, async (row) => {
  if (row.success === false) {
    await refusedWith(row.code, () => decodeSet(row.size, hex(row.bitmap), 'a set'));
    return;
  }
  assert.equal(toHex(encodeSet(row.size, row.members)), row.bitmap);
  assert.deepEqual(decodeSet(row.size, hex(row.bitmap), 'a set'), row.members);
});

eachRow('encodings', 'adverts', 4, async (row) => {
  const sid = hex(row.sid);
  const ctx0 = hex(row.ctx0);
  const credential =
    row.credential === '' ? null : readCredential(new Reader(hex(row.credential), 'credential'));
  const commitment = seedCommitment(row.suite, sid, row.identity, hex(row.self_mask_seed));
  assert.equal(toHex(commitment), row.commitment);
  const idPart = encodeIdPart(row.identity, credential);
  const keyPart = encodeKeyPart(
    x25519PublicKey(hex(row.channel_private_key)),
    x25519PublicKey(hex(row.mask_private_key)),
    commitment,
    row.noise_seeds.map((seed: string, i: number) =>
      noiseCommitment(row.suite, sid, row.identity, i, hex(seed)),
    ),
  );
  const signature =
    row.identity_seed === ''
      ? new Uint8Array()
      : await new SeedSigner(hex(row.identity_seed)).sign(
          signedAdvert(row.suite, ctx0, idPart, keyPart),
        );
  const advert = encodeAdvert(idPart, keyPart, signature);
  assert.equal(toHex(advert), row.advert);
  const decoded = decodeAdvert(advert);
  assert.equal(decoded.identity, row.identity);
  assert.equal(toHex(rosterLeaf(row.suite, ctx0, 5, decoded)), row.leaf_5);
});

eachRow('encodings', 'rosters', 2, (row) => {
  const adverts: Advert[] = row.adverts.map((advert: string) => decodeAdvert(hex(advert)));
  const seed = hex(row.graph_seed);
  assert.equal(toHex(encodeRoster(row.adverts.map(hex), seed)), row.roster);
  const layers = adverts[0]!.noiseCommitments.length;
  const roster = decodeRoster(hex(row.roster), layers);
  assert.deepEqual([...roster.adverts.values()], adverts);
  assert.ok(equal(roster.graphSeed, seed));
  const node = rosterNode(row.suite);
  const leaves = adverts.map((advert, i) => rosterLeaf(row.suite, hex(row.ctx0), i, advert));
  assert.equal(toHex(treeTop(leaves, node)), row.top);
  row.neighbourhoods?.forEach((expected: string, reader: number) => {
    const shown = [reader, ...neighboursOf(adverts.length, row.degree, reader)].sort(
      (a, b) => a - b,
    );
    const made = encodeNeighbourhood(
      adverts.length,
      reader,
      seed,
      shown.map((i) => [i, hex(row.adverts[i])] as const),
      treeProof(leaves, shown, node),
    );
    assert.equal(toHex(made), expected);
    const read = decodeRoster(hex(expected), layers);
    assert.equal(read.reader, reader);
    const known = new Map(
      [...read.adverts].map(([i, advert]) => [i, rosterLeaf(row.suite, hex(row.ctx0), i, advert)]),
    );
    assert.equal(toHex(topFromProof(read.size, known, read.proof, node)), row.top);
  });
});

eachRow('encodings', 'rings', 3, (row) => {
  const seed = hex(row.graph_seed);
  const sorted = [...row.identities].sort((a: string, b: string) =>
    toHex(ringOrder(seed, a)) < toHex(ringOrder(seed, b)) ? -1 : 1,
  );
  assert.deepEqual(sorted, row.identities);
  // Of the first client, of the one in the middle, and of the last.
  const clients = [0, Math.floor(sorted.length / 2), sorted.length - 1];
  assert.deepEqual(
    clients.map((i) => neighboursOf(sorted.length, row.degree, i)),
    row.neighbours,
  );
});

eachRow('enrolment', 'signatures', 21, (row) => {
  assert.equal(ed25519Verify(hex(row.key), hex(row.message), hex(row.signature)), row.success);
});

eachRow('enrolment', 'requests', 8, async (row) => {
  if (row.code !== undefined) {
    await refusedWith(row.code, () => decodeEnrolmentRequest(hex(row.request)));
    return;
  }
  const request = decodeEnrolmentRequest(hex(row.request));
  assert.equal(enrolmentRequestHolds(request), row.success);
  if (!row.success) return;
  const made = await makeEnrolmentRequest(
    row.fields.trust_domain,
    row.fields.name,
    BigInt(row.fields.made_at),
    new SeedSigner(hex(row.identity_seed)),
  );
  assert.equal(toHex(made), row.request);
});

const enrolment = readVectors('enrolment') as Row;

eachRow('enrolment', 'credentials', 23, async (row) => {
  const trust = trustOf(row.trust ?? enrolment.trust);
  const newest = enrolment.revocation_lists.find((list: Row) => list.name === 'three serials');
  const revoked = new Set<number>(newest.serials);
  const credential = readCredential(new Reader(hex(row.credential), 'a credential'));
  const check = () =>
    checkCredential(
      trust,
      row.identity,
      credential,
      BigInt(enrolment.session_end),
      revoked,
      new VerifiedCredentials(),
    );
  if (row.success) {
    check();
    const held = { trustDomain: trust.trustDomain, name: row.identity, credential };
    assert.deepEqual(decodeHeldCredential(encodeHeldCredential(held)), held);
    return;
  }
  await refusedWith(row.code, check);
  assert.throws(check, new RegExp(`\\(${row.rule}\\)`));
});

eachRow('enrolment', 'revocation_lists', 15, async (row) => {
  // An empty text stands for no list, as for the other messages that a row lacks.
  const list = row.revocations === '' ? null : hex(row.revocations);
  const check = () => checkRevocationList(trustOf(row.trust), list);
  if (row.success) assert.deepEqual(check()?.serials ?? [], row.serials ?? []);
  else await refusedWith(row.code, check);
});

eachRow('secrets', 'shares', 2, (row) => {
  const shares = new Map<number, number[]>();
  row.points.forEach((point: number, i: number) => {
    const limbs = shareAt(hex(row.secret), row.coefficients, point);
    assert.deepEqual(limbs, row.limbs[i]);
    assert.equal(toHex(encodeShare(limbs)), row.shares[i]);
    shares.set(point, limbs);
  });
  for (let first = 0; first + row.threshold <= row.points.length; first++) {
    const some = new Map([...shares].slice(first, first + row.threshold));
    assert.equal(toHex(rebuildSecret(some)!), row.secret);
  }
});

eachRow('secrets', 'share_encodings', 8, async (row) => {
  if (!row.success) {
    await refusedWith(row.code, () => decodeShare(hex(row.share)));
    return;
  }
  assert.equal(toHex(encodeShare(row.limbs)), row.share);
  assert.deepEqual(decodeShare(hex(row.share)), row.limbs);
});

eachRow('secrets', 'bundles', 3, (row) => {
  const ctx1 = hex(row.ctx1);
  const secret = agree(hex(row.sender_private_key), x25519PublicKey(hex(row.receiver_private_key)));
  assert.equal(toHex(secret), row.agreed_secret);
  const ends = [row.suite, hex(row.sid), ctx1, row.sender, row.receiver] as const;
  assert.equal(toHex(shareKey(...ends, secret)), row.key);
  assert.equal(
    toHex(shareAssociatedData(row.suite, ctx1, row.sender, row.receiver)),
    row.associated_data,
  );
  const shares = { key: hex(row.share_of_key), seed: hex(row.share_of_seed) };
  const bundle = sealBundle(...ends, row.abscissa, secret, shares);
  assert.equal(toHex(bundle), row.bundle);
  const opened = openBundle(...ends, row.abscissa, secret, bundle);
  assert.ok('key' in opened);
  assert.equal(toHex(opened.key), row.share_of_key);
  assert.equal(toHex(opened.seed), row.share_of_seed);
});

eachRow('masks', 'keys', 4, async (row) => {
  const sid = hex(row.sid);
  const ctx2 = hex(row.ctx2);
  const [u, v] = row.indices;
  const key =
    row.role === 'pair'
      ? pairMaskKey(row.suite, sid, ctx2, u, v, hex(row.secret))
      : selfMaskKey(row.suite, sid, ctx2, u, hex(row.secret));
  assert.equal(toHex(key.key), row.key);
  assert.equal(toHex(key.iv), row.iv);
  for (const { modulus, coordinates } of row.masks) {
    const m = BigInt(modulus);
    const vector = zeroResidues(m, coordinates.length);
    await addMask(vector, m, await openMaskStream(key), 1);
    assert.deepEqual([...vector].map(String), coordinates.map(String));
    await addMask(vector, m, await openMaskStream(key), -1);
    assert.ok([...vector].every((entry) => BigInt(entry) === 0n));
  }
});

eachRow('masks', 'seeks', 6, async (row) => {
  const stream = await openMaskStream({ key: hex(row.key), iv: hex(row.iv) });
  const m = BigInt(row.modulus);
  let found: (number | bigint)[];
  if ((m & (m - 1n)) === 0n) {
    found = [...(await maskSlice(stream, m, row.start, row.dim))];
  } else {
    const vector = zeroResidues(m, row.dim);
    await addMask(vector, m, stream, 1);
    found = [...vector].slice(row.start);
  }
  if (row.coordinates !== undefined) {
    assert.deepEqual(found.map(String), row.coordinates.map(String));
    return;
  }
  const bytes = new Uint8Array(Uint16Array.from(found as number[]).buffer);
  assert.equal(createHash('sha256').update(bytes).digest('hex'), row.sha256_of_u16_le);
});

eachRow('masks', 'packing', 9, (row) => {
  const modulus = 1n << BigInt(row.bits);
  const vector = zeroResidues(modulus, row.dim);
  for (let j = 0; j < row.dim; j++) {
    const product = (BigInt(j) * 0x9e3779b97f4a7c15n) & ((1n << 64n) - 1n);
    const entry = product >> BigInt(64 - row.bits);
    if (vector instanceof BigUint64Array) vector[j] = entry;
    else vector[j] = Number(entry);
  }
  const packed = pack(vector, modulus);
  assert.equal(packedSize(modulus, row.dim), row.size);
  assert.equal(packed.length, row.size);
  if (row.packed !== undefined) assert.equal(toHex(packed), row.packed);
  else assert.equal(createHash('sha256').update(packed).digest('hex'), row.sha256);
  assert.deepEqual(unpack(packed, modulus, row.dim), vector);
});

const ruleOf = (noise: Row): NoiseRule => ({
  countedVariance: parseRational(noise.counted_variance)!,
  minSurvivors: noise.min_survivors,
  lossFraction: parseRational(noise.loss_fraction)!,
  colluders: noise.colluders,
  colluderFraction: parseRational(noise.colluder_fraction)!,
  shareBits: noise.share_bits,
  ladder: noise.ladder,
});

eachRow('noise', 'rules', 7, async (row) => {
  const rule = ruleOf(row.noise);
  if (row.success === false) {
    await refusedWith(row.code, () => shareNoise(rule, row.share_holders));
    return;
  }
  for (const session of row.sessions) {
    const share = shareNoise(rule, session.share_holders);
    assert.equal(formatRational(share.base), session.base);
    assert.deepEqual(share.layers.map(formatRational), session.layers);
    session.taken_back.forEach((layers: number[], losses: number) => {
      assert.deepEqual(layersTakenBack(rule, share, losses), layers);
    });
    const context = noiseContext(session.suite, share, session.tables);
    assert.equal(toHex(context), session.noise_context);
  }
});

eachRow('noise', 'layer_keys', 3, (row) => {
  const info = concat(
    tag('client', 'noise', row.suite),
    u32(32),
    hex(row.ctx2),
    u32(row.layer + 1),
  );
  assert.equal(toHex(expand(hex(row.noise_seed), info, 32)), row.key);
});

eachRow('noise', 'blocks', 45, async (row) => {
  const read = () => {
    const offer = decodeOffer(hex(row.offer));
    checkOfferRules(offer);
    return readSessionNoise(offer, null);
  };
  if (!row.success) {
    await refusedWith(row.code, read);
    return;
  }
  const noise = read()!;
  const terms = readNoiseTerms(utf8(row.noise_terms), noise.block.unit);
  assert.ok(noise.unit === terms || compareRational(noise.unit!, terms!) === 0);
});

test('every list of these files was read', () => {
  const lists = Object.fromEntries(
    ['encodings', 'enrolment', 'secrets', 'masks', 'noise'].map((file) => [
      file,
      Object.entries(readVectors(file))
        .filter(([, rows]) => Array.isArray(rows))
        .map(([key]) => key),
    ]),
  );
  assert.deepEqual(lists, {
    encodings: [
      'offers',
      'context_chains',
      'trees',
      'proofs',
      'sets',
      'adverts',
      'rosters',
      'rings',
    ],
    enrolment: [
      'signatures',
      'requests',
      'credentials',
      'revocation_lists',
      'certificates',
      'identity_files',
    ],
    secrets: ['shares', 'share_encodings', 'bundles'],
    masks: ['keys', 'seeks', 'packing'],
    noise: ['rules', 'layer_keys', 'blocks'],
  });
});

test('a key stream can be read from any byte on', async () => {
  const stream = await KeyStream.open(new Uint8Array(32), new Uint8Array(16).fill(255));
  const whole = await stream.read(0, (1 << 20) + 100);
  for (const [start, length] of [
    [0, 0],
    [1, 40],
    [15, 1],
    [16, 17],
    [(1 << 20) - 3, 103],
  ] as const) {
    assert.deepEqual(await stream.read(start, length), whole.slice(start, start + length));
  }
});

test('what was sealed opens under its key and data alone', () => {
  const key = hash(1, 'test');
  const sealed = seal(key, utf8('text'), utf8('data'));
  assert.deepEqual(open(key, sealed, utf8('data')), utf8('text'));
  assert.equal(open(key, sealed, utf8('other')), undefined);
});
