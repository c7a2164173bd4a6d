package secagg;

import java.math.BigInteger;
import java.security.GeneralSecurityException;
import java.security.InvalidKeyException;
import java.security.KeyFactory;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.security.spec.NamedParameterSpec;
import java.security.spec.XECPrivateKeySpec;
import java.security.spec.XECPublicKeySpec;
import java.util.Arrays;
import javax.crypto.AEADBadTagException;
import javax.crypto.Cipher;
import javax.crypto.KeyAgreement;
import javax.crypto.Mac;
import javax.crypto.spec.IvParameterSpec;
import javax.crypto.spec.SecretKeySpec;

/** Hashes, keys and seals of one suite (PROTOCOL 4 and 6), by the Java platform's own providers. */
final class Crypto {
    private static final SecureRandom RANDOM = new SecureRandom();
    private static final BigInteger FIELD = BigInteger.ONE.shiftLeft(255).subtract(BigInteger.valueOf(19));
    private static final int SEALED_ONCE = 12; // a key seals one message: the nonce is zero (R6.1-1)

    final int suite;

    Crypto(int suite) {
        this.suite = suite;
    }

    /** Return fresh bytes of the operating system's generator. */
    static byte[] random(int size) {
        byte[] made = new byte[size];
        RANDOM.nextBytes(made);
        return made;
    }

    byte[] tag(String role, String usage) {
        return new Bytes.Writer()
                .text("SecAgg/1")
                .blob(new byte[] {(byte) (suite >> 8), (byte) suite})
                .text(role)
                .text(usage)
                .done();
    }

    /** Return H(usage; parts). */
    byte[] hash(String usage, byte[]... parts) {
        Bytes.Writer all = new Bytes.Writer().fixed(tag("hash", usage));
        for (byte[] part : parts) {
            all.blob(part);
        }
        return sha256(all.done());
    }

    static byte[] sha256(byte[] data) {
        try {
            return MessageDigest.getInstance("SHA-256").digest(data);
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }

    private static byte[] hmac(byte[] key, byte[]... parts) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            // HMAC pads its key with zeros: an empty one equals zeros.
            mac.init(new SecretKeySpec(key.length == 0 ? new byte[32] : key, "HmacSHA256"));
            for (byte[] part : parts) {
                mac.update(part);
            }
            return mac.doFinal();
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Return `size` bytes of HKDF-SHA256 (RFC 5869). */
    static byte[] derive(byte[] salt, byte[] secret, byte[] info, int size) {
        byte[] key = hmac(salt, secret);
        byte[] made = new byte[0];
        byte[] last = new byte[0];
        for (int i = 1; made.length < size; i++) {
            last = hmac(key, last, info, new byte[] {(byte) i});
            made = Arrays.copyOf(made, made.length + 32);
            System.arraycopy(last, 0, made, made.length - 32, 32);
        }
        return Arrays.copyOf(made, size);
    }

    private static BigInteger fromLittle(byte[] data) {
        byte[] big = new byte[data.length];
        for (int i = 0; i < data.length; i++) {
            big[i] = data[data.length - 1 - i];
        }
        return new BigInteger(1, big);
    }

    /** Return X25519 of a scalar and a point; refuse a result of zeros (R6-1). */
    static byte[] x25519(byte[] scalar, byte[] point) {
        try {
            KeyFactory keys = KeyFactory.getInstance("X25519");
            KeyAgreement agreement = KeyAgreement.getInstance("X25519");
            agreement.init(keys.generatePrivate(new XECPrivateKeySpec(NamedParameterSpec.X25519, scalar)));
            agreement.doPhase(
                    keys.generatePublic(new XECPublicKeySpec(NamedParameterSpec.X25519, fromLittle(point))), true);
            return agreement.generateSecret();
        } catch (InvalidKeyException error) {
            throw new Refusal("BAD_PUBLIC_KEY", "a public key is of low order");
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }

    static byte[] publicKey(byte[] scalar) {
        byte[] base = new byte[32];
        base[0] = 9;
        return x25519(scalar, base);
    }

    /** Refuse a key that is not canonical, or of low order. */
    static void checkPublicKey(byte[] key) {
        if (fromLittle(key).compareTo(FIELD) >= 0) {
            throw new Refusal("BAD_PUBLIC_KEY", "a public key is not canonical");
        }
        // Every scalar is a multiple of 8: a point of low order gives zeros with any of them.
        x25519(new byte[32], key);
    }

    static byte[] seal(byte[] key, byte[] plain, byte[] outside) {
        return chacha(Cipher.ENCRYPT_MODE, key, plain, outside);
    }

    /** Return what was sealed; null where it is not authentic. */
    static byte[] open(byte[] key, byte[] sealed, byte[] outside) {
        return chacha(Cipher.DECRYPT_MODE, key, sealed, outside);
    }

    private static byte[] chacha(int mode, byte[] key, byte[] data, byte[] outside) {
        try {
            Cipher cipher = Cipher.getInstance("ChaCha20-Poly1305");
            cipher.init(mode, new SecretKeySpec(key, "ChaCha20"), new IvParameterSpec(new byte[SEALED_ONCE]));
            cipher.updateAAD(outside);
            return cipher.doFinal(data);
        } catch (AEADBadTagException error) {
            return null;
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }

    /** The keystream of a mask (PROTOCOL 6.4), from its first word on. */
    static final class Stream {
        private final Cipher cipher;
        private final int wordBytes;
        private byte[] piece = new byte[0];
        private int at;

        Stream(byte[] keyAndIv, int wordBytes) {
            int size = keyAndIv.length - 12;
            byte[] counter = Arrays.copyOf(Arrays.copyOfRange(keyAndIv, size, keyAndIv.length), 16);
            counter[15] = 2;
            this.wordBytes = wordBytes;
            try {
                cipher = Cipher.getInstance("AES/CTR/NoPadding");
                cipher.init(
                        Cipher.ENCRYPT_MODE,
                        new SecretKeySpec(Arrays.copyOf(keyAndIv, size), "AES"),
                        new IvParameterSpec(counter));
            } catch (GeneralSecurityException error) {
                throw new IllegalStateException(error);
            }
        }

        /** Return the next word; one of 8 bytes is unsigned. */
        long next() {
            if (at == piece.length) {
                piece = cipher.update(new byte[1 << 13]);
                at = 0;
            }
            long word = 0;
            for (int i = wordBytes - 1; i >= 0; i--) {
                word = word << 8 | piece[at + i] & 0xff;
            }
            at += wordBytes;
            return word;
        }
    }

    int keyBytes() {
        return suite == 1 ? 32 : 16;
    }
}
