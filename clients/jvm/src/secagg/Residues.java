package secagg;

import java.util.Arrays;

/** Vectors mod m: masks (PROTOCOL 6.4, 6.5), packing (8), and exact values (14.1). */
final class Residues {
    private static final int BLOCK = 1 << 17;
    final long modulus;
    final int bits;
    final int wordBits;

    Residues(long modulus) {
        this.modulus = modulus;
        bits = 64 - Long.numberOfLeadingZeros(modulus - 1);
        wordBits = bits <= 16 ? 16 : bits <= 32 ? 32 : 64;
    }

    long add(long a, long b) {
        long sum = a + b; // below 2^63, as m is at most 2^62
        return sum >= modulus ? sum - modulus : sum;
    }

    /** Add or subtract the mask of a key, in place. */
    void mask(long[] vector, byte[] keyAndIv, boolean adds) {
        Crypto.Stream stream = new Crypto.Stream(keyAndIv, wordBits / 8);
        long[] drawn = new long[vector.length];
        int[] rejected = new int[16];
        int left = 0;
        for (int j = 0; j < drawn.length; j++) {
            long word = stream.next();
            if (accepts(word)) {
                drawn[j] = Long.remainderUnsigned(word, modulus);
                continue;
            }
            if (left == rejected.length) {
                rejected = Arrays.copyOf(rejected, 2 * left);
            }
            rejected[left++] = j;
        }
        for (int i = 0; i < left; i++) {
            long word = stream.next();
            while (!accepts(word)) {
                word = stream.next();
            }
            drawn[rejected[i]] = Long.remainderUnsigned(word, modulus);
        }
        for (int j = 0; j < drawn.length; j++) {
            long term = adds || drawn[j] == 0 ? drawn[j] : modulus - drawn[j];
            vector[j] = add(vector[j], term);
        }
    }

    /** Whether a word is below the largest multiple of m that fits. */
    private boolean accepts(long word) {
        if (wordBits < 64) {
            return word < (1L << wordBits) / modulus * modulus;
        }
        long over = Long.remainderUnsigned(-modulus, modulus); // 2^64 mod m
        return over == 0 || Long.compareUnsigned(word, -over) < 0;
    }

    byte[] pack(long[] vector) {
        byte[] out = new byte[size(vector.length)];
        walk(vector.length, (entry, bit, place) -> {
            if ((vector[entry] >>> bit & 1) != 0) {
                out[(int) (place >>> 3)] |= (byte) (1 << (place & 7));
            }
        });
        return out;
    }

    /** Return the residues of a packed vector; refuse another length, range or unused bit. */
    long[] unpack(byte[] packed, int dimension) {
        if (packed.length != size(dimension)) {
            throw new Refusal("BAD_VECTOR", "the packed vector has another length");
        }
        long[] vector = new long[dimension];
        walk(dimension, (entry, bit, place) ->
                vector[entry] |= (long) (packed[(int) (place >>> 3)] >>> (place & 7) & 1) << bit);
        for (long each : vector) {
            if (each >= modulus) {
                throw new Refusal("BAD_VECTOR", "an entry is too large");
            }
        }
        int unused = (int) (8L * packed.length - (long) dimension * bits);
        if (unused > 0 && (packed[packed.length - 1] & 0xff) >>> (8 - unused) != 0) {
            throw new Refusal("BAD_VECTOR", "unused bits are not zero");
        }
        return vector;
    }

    private int size(long dimension) {
        return Math.toIntExact((dimension * bits + 7) / 8);
    }

    private interface Place {
        void at(int entry, int bit, long place);
    }

    /** Name the place of every bit of every entry in the packed vector (R8-1). */
    private void walk(int dimension, Place visit) {
        int first = 0;
        while (dimension - first >= BLOCK) {
            block(first, BLOCK / wordBits, visit);
            first += BLOCK;
        }
        int columns = (dimension - first) / wordBits;
        block(first, columns, visit);
        long start = (long) (first + columns * wordBits) * bits;
        for (int entry = first + columns * wordBits; entry < dimension; entry++) {
            for (int bit = 0; bit < bits; bit++) {
                visit.at(entry, bit, start++);
            }
        }
    }

    private void block(int first, int columns, Place visit) {
        long start = (long) first * bits;
        for (int row = 0; row < wordBits; row++) {
            for (int column = 0; column < columns; column++) {
                for (int bit = 0; bit < bits; bit++) {
                    int inColumn = row * bits + bit;
                    long word = (long) (inColumn / wordBits) * columns + column;
                    visit.at(first + row * columns + column, bit, (start + word * wordBits) + inColumn % wordBits);
                }
            }
        }
    }

    /** Return the residue of a value; refuse one that is out of range (R14.1-1). */
    long of(long value) {
        if (value < -(modulus / 2) || value > (modulus + 1) / 2 - 1) {
            throw new Refusal("BAD_INPUT", "an entry is out of range");
        }
        return value < 0 ? value + modulus : value;
    }

    /** Return the signed value of a residue (R14.1-2). */
    long centred(long residue) {
        return residue >= (modulus + 1) / 2 ? residue - modulus : residue;
    }
}
