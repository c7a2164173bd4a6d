package secagg;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * One session of a client of profile 1 on the complete graph, with an exact sum.
 *
 * <p>It keeps nothing on a disk: a program that is restarted has lost its session. A failed check
 * throws {@link Refusal}; the caller then leaves and says nothing more.
 */
final class Session {
    private static final int ADVERT = 1;
    private static final int BUNDLES = 2;
    private static final int UPLOAD = 3;
    private static final int ANSWER = 4;
    private static final int ROSTER = 5;
    private static final int DELIVERY = 6;
    private static final int SURVIVORS = 7;
    private static final int RELEASE = 8;
    private static final int ABORT = 9;
    private static final int COMPLAINT = 10;
    private static final int BUNDLE_BYTES = 96;
    private static final byte[] NOTHING = new byte[0];
    private static final Map<Integer, String> CODES = codes();

    /** What a call has come to: messages to send; a view to show; how it ended, if it has. */
    static final class Step {
        final List<byte[]> messages = new ArrayList<>();
        byte[] view = NOTHING;
        String ended = "";
        boolean released;
    }

    private record Peer(byte[] encryptionKey, byte[] maskKey) {}

    private final Offer offer;
    private final Crypto crypto;
    private final Residues residues;
    private final String name;
    private final byte[] nameBytes;
    private final long[] input;
    private final byte[] sid;
    private final byte[] ctx0;
    private final byte[] encryptionSecret = Crypto.random(32);
    private final byte[] maskSecret = Crypto.random(32);
    private final byte[] selfSeed = Crypto.random(32);
    private final Map<Integer, byte[]> heard = new HashMap<>();
    private int expected = ROSTER;

    private byte[] advert = NOTHING;
    private byte[] ctx1 = NOTHING;
    private byte[] ctx2 = NOTHING;
    private final List<Peer> roster = new ArrayList<>();
    private int own;
    private byte[][] ownShares = new byte[2][];
    private boolean[] shareHolders = new boolean[0];
    private byte[][][] held = new byte[0][][];
    private boolean isBound;
    private int survivors;
    private byte[] sumHash = NOTHING;

    Session(Offer offer, String name, long[] input) {
        this.offer = offer;
        this.name = name;
        this.input = input;
        crypto = new Crypto(offer.suite);
        residues = new Residues(offer.modulus);
        nameBytes = name.getBytes(StandardCharsets.UTF_8);
        byte[] configuration =
                crypto.hash("configuration", offer.parameters, offer.payloadHash, offer.noiseTerms);
        sid = crypto.hash(
                "sid",
                offer.aggregator.getBytes(StandardCharsets.UTF_8),
                offer.task.getBytes(StandardCharsets.UTF_8),
                u64(offer.number),
                offer.nonce,
                u64(offer.end),
                configuration);
        ctx0 = crypto.hash("ctx0", sid, configuration);
    }

    /** Return the advert (PROTOCOL 5.1). */
    Step join() {
        byte[] idPart = new Bytes.Writer().text(name).number(0, 1).done();
        byte[] keyPart = new Bytes.Writer()
                .fixed(Crypto.publicKey(encryptionSecret))
                .fixed(Crypto.publicKey(maskSecret))
                .fixed(crypto.hash("b-commit", sid, nameBytes, selfSeed))
                .number(0, 1)
                .done();
        advert = new Bytes.Writer().blob(idPart).blob(keyPart).blob(NOTHING).done();
        return said(ADVERT, advert);
    }

    /** Take an update of the aggregator: the message's number, then its encoding. */
    Step hear(byte[] update, double now) {
        if (update.length == 0) {
            return new Step();
        }
        int kind = update[0] & 0xff;
        byte[] body = Arrays.copyOfRange(update, 1, update.length);
        if (kind == RELEASE || kind == ABORT) {
            return ending(kind, new Bytes.Reader(body));
        }
        byte[] before = heard.get(kind);
        if (before != null) { // R5-8, R5.4-5: compared before it is decoded
            Offer.require(Arrays.equals(before, body), "EQUIVOCATION", "the aggregator has said two things");
            return new Step();
        }
        Offer.require(kind == expected, "UNEXPECTED_MESSAGE", "this message is not due");
        Offer.require(now < offer.end, "DEADLINE", "the session's end has passed"); // R5-7
        heard.put(kind, body);
        return switch (kind) {
            case ROSTER -> readRoster(body);
            case DELIVERY -> readDelivery(new Bytes.Reader(body));
            default -> readSurvivors(body);
        };
    }

    // --- the roster -------------------------------------------------------------------

    private Step readRoster(byte[] body) {
        Bytes.Reader from = new Bytes.Reader(body);
        long form = from.number(1);
        // R5.2-25: a neighbourhood is for rings.
        Offer.require(form != 1, "POLICY_VIOLATION", "there is no ring");
        if (form != 0) {
            throw Bytes.Reader.malformed("a roster has no such form");
        }
        long size = from.u32();
        Offer.require(size <= 65535, "BAD_ENCODING", "the roster is too long");
        List<byte[]> leaves = new ArrayList<>();
        List<byte[]> adverts = new ArrayList<>();
        boolean hasOtherForm = false;
        byte[] last = NOTHING;
        int place = -1;
        for (int i = 0; i < size; i++) {
            byte[] data = from.blob(1 << 16);
            adverts.add(data);
            Bytes.Reader each = new Bytes.Reader(data);
            byte[] idPart = each.blob(1 << 12);
            byte[] keyPart = each.blob(1 << 12);
            byte[] signature = each.blob(64);
            each.end();
            Bytes.Reader id = new Bytes.Reader(idPart);
            byte[] identity = id.text(1, 255).getBytes(StandardCharsets.UTF_8);
            long advertForm = id.number(1);
            Offer.require(advertForm <= 1, "BAD_ENCODING", "an advert has no such form");
            if (advertForm == 1) {
                id.fixed(116);
            }
            id.end();
            Offer.require(
                    signature.length == 0 || signature.length == 64, "BAD_ENCODING", "a signature has 64 bytes");
            hasOtherForm |= advertForm == 1 || signature.length != 0;
            Bytes.Reader keys = new Bytes.Reader(keyPart);
            roster.add(new Peer(keys.fixed(32), keys.fixed(32)));
            keys.fixed(32);
            Offer.require(keys.number(1) == 0, "BAD_ENCODING", "an advert has layers");
            keys.end();
            Offer.require(
                    i == 0 || Arrays.compareUnsigned(last, identity) < 0, "BAD_ENCODING", "the roster is not sorted");
            last = identity;
            if (Arrays.equals(identity, nameBytes)) {
                place = i;
            }
            leaves.add(crypto.hash(
                    "roster leaf",
                    ctx0,
                    u32(i),
                    crypto.hash("id part", idPart),
                    crypto.hash("key part", keyPart, signature)));
        }
        byte[] seed = from.blob(32);
        Offer.require(seed.length == 0 || seed.length == 32, "BAD_ENCODING", "a seed has 32 bytes");
        from.end();
        Offer.require(size >= offer.minClients, "ROSTER_TOO_SMALL", "too few clients");
        Offer.require(size <= offer.maxClients, "ROSTER_TOO_LARGE", "too many clients");
        Offer.require(
                place >= 0 && Arrays.equals(adverts.get(place), advert), "SELF_MISSING", "its own advert is not there");
        Offer.require(!hasOtherForm, "BAD_SIGNATURE", "profile 1 has neither credentials nor signatures");
        Set<String> keys = new HashSet<>();
        for (Peer each : roster) {
            Crypto.checkPublicKey(each.encryptionKey());
            Crypto.checkPublicKey(each.maskKey());
        }
        for (Peer each : roster) {
            boolean isNew = keys.add(Bytes.hex(each.encryptionKey()));
            Offer.require(isNew && keys.add(Bytes.hex(each.maskKey())), "DUPLICATE_KEY", "one key comes twice");
        }
        Offer.require(seed.length == 0, "POLICY_VIOLATION", "a seed is for rings");
        own = place;
        ctx1 = crypto.hash("ctx1", ctx0, u32(size), top(leaves), NOTHING);
        expected = DELIVERY;
        return said(BUNDLES, bundles());
    }

    private byte[] top(List<byte[]> leaves) {
        if (leaves.size() == 1) {
            return leaves.get(0);
        }
        int left = Integer.highestOneBit(leaves.size() - 1);
        return crypto.hash("roster node", top(leaves.subList(0, left)), top(leaves.subList(left, leaves.size())));
    }

    private byte[] bundles() {
        int size = roster.size();
        byte[][] ofKey = Shares.deal(maskSecret, (int) offer.threshold, size);
        byte[][] ofSeed = Shares.deal(selfSeed, (int) offer.threshold, size);
        ownShares = new byte[][] {ofKey[own], ofSeed[own]};
        Bytes.Writer all = new Bytes.Writer();
        for (int v = 0; v < size; v++) {
            if (v != own) {
                byte[] plain = new Bytes.Writer()
                        .u32(own)
                        .u32(v)
                        .u32(v + 1)
                        .fixed(ofKey[v])
                        .fixed(ofSeed[v])
                        .done();
                all.fixed(Crypto.seal(channel(own, v), plain, associated(own, v)));
            }
        }
        return all.done();
    }

    private byte[] channel(int from, int to) {
        Peer other = roster.get(from == own ? to : from);
        byte[] info = new Bytes.Writer()
                .fixed(crypto.tag("client", "share"))
                .blob(ctx1)
                .u32(from)
                .u32(to)
                .done();
        return Crypto.derive(sid, Crypto.x25519(encryptionSecret, other.encryptionKey()), info, 32);
    }

    private byte[] associated(int from, int to) {
        return new Bytes.Writer()
                .fixed(crypto.tag("client", "share bundle"))
                .blob(ctx1)
                .u32(from)
                .u32(to)
                .done();
    }

    // --- the delivery -----------------------------------------------------------------

    private Step readDelivery(Bytes.Reader from) {
        int size = roster.size();
        byte[] bitmap = from.blob(1 << 13);
        byte[] sealed = from.blob(1L << 31);
        from.end();
        shareHolders = members(bitmap);
        int count = count(shareHolders);
        Offer.require(shareHolders[own], "SELF_MISSING", "it is not among those who shared");
        Offer.require(count >= offer.fewest(), "U2_TOO_SMALL", "too few have shared");
        Offer.require(
                sealed.length == BUNDLE_BYTES * (count - 1), "BAD_SHARE_CIPHERTEXT", "it is not one bundle for each");
        held = new byte[size][][];
        held[own] = ownShares;
        Step step = new Step();
        int useful = 1;
        int at = 0;
        for (int u = 0; u < size; u++) {
            if (!shareHolders[u] || u == own) {
                continue;
            }
            byte[] bundle = Arrays.copyOfRange(sealed, at, at + BUNDLE_BYTES);
            at += BUNDLE_BYTES;
            int complaint = complaintAbout(u, bundle);
            if (complaint == 0) {
                useful++;
            } else {
                step.messages.add(message(
                        COMPLAINT, new Bytes.Writer().number(complaint, 2).u32(u).done()));
            }
        }
        // R5.3-11: others were shown another roster.
        Offer.require(useful >= offer.threshold, "BAD_SHARE_CIPHERTEXT", "too few shares are of use");
        ctx2 = crypto.hash("ctx2", ctx1, NOTHING, bitmap, NOTHING);
        step.view = crypto.hash("view", ctx2);
        expected = 0; // until the vector is bound
        return step;
    }

    /** Keep the shares of a bundle; return the code of a complaint, or 0 (R5.3-7). */
    private int complaintAbout(int dealer, byte[] bundle) {
        byte[] plain = Crypto.open(channel(dealer, own), bundle, associated(dealer, own));
        if (plain == null) {
            return 10;
        }
        Bytes.Reader from = new Bytes.Reader(plain);
        boolean fits = from.u32() == dealer & from.u32() == own & from.u32() == own + 1;
        byte[][] shares = {from.fixed(Shares.SIZE), from.fixed(Shares.SIZE)};
        if (!fits || !Shares.isCanonical(shares[0]) || !Shares.isCanonical(shares[1])) {
            return 11;
        }
        held[dealer] = shares;
        return 0;
    }

    /** Mask the vector, after the aggregator has taken the view. */
    Step bind(double now) {
        Offer.require(ctx2.length > 0 && !isBound, "UNEXPECTED_MESSAGE", "no view was shown");
        Offer.require(now < offer.end, "DEADLINE", "the session's end has passed");
        isBound = true;
        long[] masked = input.clone();
        int keyed = crypto.keyBytes() + 12;
        byte[] selfInfo = new Bytes.Writer()
                .fixed(crypto.tag("self", "mask"))
                .blob(ctx2)
                .u32(own)
                .u32(0)
                .done();
        residues.mask(masked, Crypto.derive(sid, selfSeed, selfInfo, keyed), true);
        for (int v = 0; v < roster.size(); v++) {
            if (v == own || !shareHolders[v]) {
                continue;
            }
            byte[] info = new Bytes.Writer()
                    .fixed(crypto.tag("pair", "mask"))
                    .blob(ctx2)
                    .u32(Math.min(own, v))
                    .u32(Math.max(own, v))
                    .u32(0)
                    .done();
            byte[] shared = Crypto.x25519(maskSecret, roster.get(v).maskKey());
            residues.mask(masked, Crypto.derive(sid, shared, info, keyed), own < v);
        }
        byte[] packed = residues.pack(masked);
        expected = SURVIVORS;
        byte[] named = new Bytes.Writer()
                .number(packed.length, 8)
                .fixed(Crypto.sha256(packed))
                .fixed(crypto.hash("view", ctx2))
                .fixed(packed)
                .done();
        return said(UPLOAD, named);
    }

    // --- the set of survivors -----------------------------------------------------------

    private Step readSurvivors(byte[] bitmap) {
        boolean[] inSum = members(bitmap);
        int count = count(inSum);
        for (int i = 0; i < inSum.length; i++) {
            Offer.require(!inSum[i] || shareHolders[i], "U3_INVALID", "a survivor has not shared");
        }
        Offer.require(inSum[own], "U3_INVALID", "it is not among the survivors");
        Offer.require(count >= offer.fewest(), "U3_TOO_SMALL", "too few survivors");
        Offer.require(
                count(shareHolders) - count <= offer.maxDropouts && roster.size() - count <= offer.maxLosses,
                "TOO_MANY_DROPOUTS",
                "too many are lost");
        survivors = count;
        byte[] absent = new byte[(count(shareHolders) + 7) / 8];
        Bytes.Writer shares = new Bytes.Writer();
        int dealer = 0;
        for (int u = 0; u < shareHolders.length; u++) {
            if (!shareHolders[u]) {
                continue;
            }
            if (held[u] == null) {
                absent[dealer / 8] |= (byte) (1 << dealer % 8);
                shares.fixed(new byte[Shares.SIZE]);
            } else {
                shares.fixed(held[u][inSum[u] ? 1 : 0]); // R5.5-9: never both
            }
            dealer++;
        }
        for (byte[] secret : List.of(encryptionSecret, maskSecret, selfSeed)) {
            Arrays.fill(secret, (byte) 0); // R5.5-5
        }
        held = new byte[0][][];
        ownShares = new byte[0][];
        expected = 0;
        return said(ANSWER, new Bytes.Writer().fixed(absent).fixed(shares.done()).done());
    }

    private boolean[] members(byte[] bitmap) {
        int size = roster.size();
        Offer.require(bitmap.length == (size + 7) / 8, "BAD_ENCODING", "the set has another length");
        boolean[] found = new boolean[size];
        for (int i = 0; i < 8 * bitmap.length; i++) {
            boolean isSet = (bitmap[i / 8] >> i % 8 & 1) == 1;
            Offer.require(!isSet || i < size, "BAD_ENCODING", "a padding bit is set"); // R3.3-1
            if (i < size) {
                found[i] = isSet;
            }
        }
        return found;
    }

    private static int count(boolean[] members) {
        int found = 0;
        for (boolean each : members) {
            found += each ? 1 : 0;
        }
        return found;
    }

    // --- the end ------------------------------------------------------------------------

    private Step ending(int kind, Bytes.Reader from) {
        long fate = from.number(1);
        Step step = new Step();
        if (kind == ABORT) {
            int code = (int) from.number(2);
            from.text(0, 1000);
            from.end();
            Offer.require(fate <= 2, "BAD_ENCODING", "there is no such fate");
            Offer.require(survivors == 0 || fate == 2, "U3_INVALID", "it has answered: its fate is 2"); // R5.6-2
            step.ended = CODES.getOrDefault(code, "INTERNAL");
            return step;
        }
        Offer.require(fate == 1 || fate == 2, "BAD_ENCODING", "there is no such fate");
        byte[] digest = from.fixed(32);
        from.fixed(8);
        long count = from.u32();
        from.fixed(8);
        from.end();
        Offer.require(isBound, "UNEXPECTED_MESSAGE", "nothing was given that could be summed"); // R5.6-1
        Offer.require(
                fate == 2 && count >= offer.fewest() && count <= count(shareHolders),
                "U3_INVALID",
                "no sum is of so many"); // R5.6-4
        Offer.require(survivors == 0 || count == survivors, "U3_INVALID", "it has answered for another set");
        sumHash = digest;
        step.released = true;
        return step;
    }

    /** Return the signed entries of the released sum. */
    long[] sum(byte[] packed) {
        Offer.require(
                sumHash.length > 0 && Arrays.equals(Crypto.sha256(packed), sumHash),
                "BAD_VECTOR",
                "this is not the sum that was released");
        long[] values = residues.unpack(packed, (int) offer.dimension);
        for (int i = 0; i < values.length; i++) {
            values[i] = residues.centred(values[i]);
        }
        return values;
    }

    private static Step said(int kind, byte[] body) {
        Step step = new Step();
        step.messages.add(message(kind, body));
        return step;
    }

    private static byte[] message(int kind, byte[] body) {
        return new Bytes.Writer().number(kind, 1).fixed(body).done();
    }

    private static byte[] u32(long value) {
        return new Bytes.Writer().u32(value).done();
    }

    private static byte[] u64(long value) {
        return new Bytes.Writer().number(value, 8).done();
    }

    private static Map<Integer, String> codes() {
        String[] fromOne = ("BAD_VERSION BAD_CONFIG POLICY_VIOLATION BAD_SIGNATURE BAD_PUBLIC_KEY DUPLICATE_KEY "
                        + "SELF_MISSING ROSTER_TOO_SMALL ROSTER_TOO_LARGE BAD_SHARE_CIPHERTEXT SHARE_CONFUSION "
                        + "U2_TOO_SMALL U3_INVALID U3_TOO_SMALL TOO_MANY_DROPOUTS NO_QUORUM EQUIVOCATION "
                        + "REPLAYED_SESSION UNEXPECTED_MESSAGE BAD_VECTOR DEADLINE RECONSTRUCTION_FAILED "
                        + "BAD_NOISE_REVEAL PAYLOAD_MISMATCH INTERNAL BAD_ENCODING TOO_FEW_ANSWERS BAD_CREDENTIAL "
                        + "BAD_PROOF BAD_EDGES DISPUTED VIEW_DIFFERS BAD_CLOCK")
                .split(" ");
        String[] fromForty = ("UNKNOWN_SESSION UNAUTHENTICATED NOT_INVITED SESSION_OVER OVERLOADED STORAGE_FAILED "
                        + "SHUTTING_DOWN UPLOAD_CORRUPT UNREACHABLE CANCELLED TASK_OVER")
                .split(" ");
        Map<Integer, String> found = new HashMap<>();
        for (int i = 0; i < fromOne.length; i++) {
            found.put(1 + i, fromOne[i]);
        }
        for (int i = 0; i < fromForty.length; i++) {
            found.put(40 + i, fromForty[i]);
        }
        return found;
    }
}
