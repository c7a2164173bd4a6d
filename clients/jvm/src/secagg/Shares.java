package secagg;

/** Shamir's sharing of 32 bytes over GF(65537), limb by limb (PROTOCOL 7). */
final class Shares {
    static final int SIZE = 34;
    private static final int LIMBS = 16;
    private static final long PRIME = 65537;

    private Shares() {}

    /** Return the shares of holders 1 to n; `threshold` of them rebuild the secret. */
    static byte[][] deal(byte[] secret, int threshold, int holders) {
        long[][] polynomials = new long[LIMBS][threshold];
        for (int limb = 0; limb < LIMBS; limb++) {
            polynomials[limb][0] = (secret[2 * limb] & 0xff) << 8 | secret[2 * limb + 1] & 0xff;
            for (int i = 1; i < threshold; i++) {
                polynomials[limb][i] = coefficient();
            }
        }
        byte[][] shares = new byte[holders][];
        for (int x = 1; x <= holders; x++) {
            byte[] share = new byte[SIZE];
            int flags = 0;
            for (int limb = 0; limb < LIMBS; limb++) {
                long value = 0;
                for (int i = threshold - 1; i >= 0; i--) {
                    value = (value * x + polynomials[limb][i]) % PRIME;
                }
                flags |= value == PRIME - 1 ? 1 << limb : 0;
                share[2 * limb] = (byte) (value >> 8);
                share[2 * limb + 1] = (byte) value;
            }
            share[32] = (byte) (flags >> 8);
            share[33] = (byte) flags;
            shares[x - 1] = share;
        }
        return shares;
    }

    private static long coefficient() {
        while (true) {
            long word = new Bytes.Reader(Crypto.random(4)).u32();
            if (word != 0xffffffffL) { // R7.1-1
                return word % PRIME;
            }
        }
    }

    /** Whether no flag stands over a limb that is not zero (R7.2-1). */
    static boolean isCanonical(byte[] share) {
        int flags = (share[32] & 0xff) << 8 | share[33] & 0xff;
        for (int limb = 0; limb < LIMBS; limb++) {
            if ((flags >> limb & 1) == 1 && (share[2 * limb] | share[2 * limb + 1]) != 0) {
                return false;
            }
        }
        return true;
    }
}
