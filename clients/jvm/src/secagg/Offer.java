package secagg;

/** A session as the aggregator offers it (PROTOCOL 3.2), decoded and checked. */
final class Offer {
    private static final int ROUNDS = 6;
    private static final long WEEK = 7 * 86_400;

    String aggregator;
    String task;
    long number;
    byte[] nonce;
    long end;
    byte[] payloadHash;
    byte[] noiseTerms;
    byte[] parameters;
    int profile;
    int suite;
    long modulus;
    long dimension;
    long minClients;
    long maxClients;
    long threshold;
    long degree;
    long minSurvivors;
    long maxDropouts;
    long maxLosses;
    long colluders;
    int layers;
    byte[] noiseBlock;
    final long[] deadlines = new long[ROUNDS];
    int graphBits;

    /** Decode an offer and check R3.2-1 to R3.2-10. */
    static Offer decode(byte[] data) {
        Offer made = new Offer();
        made.read(new Bytes.Reader(data), data);
        made.check();
        return made;
    }

    private void read(Bytes.Reader from, byte[] data) {
        aggregator = from.text(1, 255);
        task = from.text(1, 256);
        number = from.number(8);
        nonce = from.fixed(32);
        end = from.number(8);
        payloadHash = from.blob(32);
        if (payloadHash.length != 0 && payloadHash.length != 32) {
            throw Bytes.Reader.malformed("the payload's hash has another length");
        }
        noiseTerms = from.blob(256);
        int start = from.position();
        require(from.number(2) == 1, "BAD_VERSION", "the version is not 1");
        profile = (int) from.number(2);
        suite = (int) from.number(2);
        // R3.2-2: this client has profile 1 alone.
        require(profile == 1, "BAD_CONFIG", "the profile is not 1");
        require(suite == 1 || suite == 2, "BAD_CONFIG", "the suite is unknown");
        modulus = from.number(8);
        dimension = from.number(8);
        minClients = from.u32();
        maxClients = from.u32();
        threshold = from.u32();
        degree = from.u32();
        minSurvivors = from.u32();
        maxDropouts = from.u32();
        maxLosses = from.u32();
        colluders = from.u32();
        layers = (int) from.number(1);
        noiseBlock = from.blob(4096);
        for (int i = 0; i < ROUNDS; i++) {
            deadlines[i] = from.u32();
        }
        Bytes.Reader tail = new Bytes.Reader(from.blob(512));
        graphBits = (int) tail.number(1);
        tail.end();
        from.end();
        parameters = java.util.Arrays.copyOfRange(data, start, data.length);
    }

    private void check() {
        require(number >= 0 && end >= 0, "BAD_CONFIG", "a number is too large");
        require(modulus >= 2 && modulus <= 1L << 62, "BAD_CONFIG", "the modulus is out of range");
        require(dimension >= 1 && dimension <= 1L << 30, "BAD_CONFIG", "the dimension is out of range");
        require(
                minClients >= 2 && minClients <= maxClients && maxClients <= 65535,
                "BAD_CONFIG",
                "the cohort is out of range");
        require(layers == 0 || layers >= 2 && layers <= 17, "BAD_CONFIG", "so many layers do not exist");
        for (int i = 0; i < ROUNDS; i++) {
            boolean isRound = i != 1 && i != 4; // profile 1 has neither edges nor consistency
            require(
                    isRound ? deadlines[i] >= 1 && deadlines[i] <= WEEK : deadlines[i] == 0,
                    "BAD_CONFIG",
                    "a deadline is out of range");
        }
        require(
                threshold >= 2
                        && threshold <= minSurvivors
                        && minSurvivors <= minClients
                        && minSurvivors >= colluders + 2
                        && maxDropouts <= maxLosses
                        && maxLosses <= maxClients - threshold,
                "BAD_CONFIG",
                "the cohort's numbers do not fit together");
        if (degree == 0) {
            require(graphBits == 0 && threshold >= colluders + 1, "BAD_CONFIG", "no complete graph is so");
        }
        if (noiseBlock.length == 0) {
            require(layers == 0 && noiseTerms.length == 0, "BAD_CONFIG", "there is no noise to describe");
        }
    }

    /** Check the clock of R5.0-2. */
    void checkClock(double now) {
        double longest = deadlines[3] + 3600;
        for (long each : deadlines) {
            longest += each;
        }
        require(now < end && end <= now + longest, "BAD_CLOCK", "the session's end does not fit this clock");
    }

    /** Return the fewest clients that a sum may have. */
    long fewest() {
        return Math.max(threshold, minSurvivors);
    }

    static void require(boolean holds, String code, String message) {
        if (!holds) {
            throw new Refusal(code, message);
        }
    }
}
