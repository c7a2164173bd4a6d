package secagg;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;

/** The canonical encoding of PROTOCOL 3.1: big-endian integers, blobs, text. */
final class Bytes {
    private Bytes() {}

    static String hex(byte[] data) {
        return HexFormat.of().formatHex(data);
    }

    static byte[] unhex(String text) {
        return HexFormat.of().parseHex(text);
    }

    /** Writes fields one after the other. */
    static final class Writer {
        private final ByteArrayOutputStream out = new ByteArrayOutputStream();

        Writer fixed(byte[] data) {
            out.writeBytes(data);
            return this;
        }

        Writer number(long value, int size) {
            for (int shift = 8 * (size - 1); shift >= 0; shift -= 8) {
                out.write((int) (value >>> shift));
            }
            return this;
        }

        Writer u32(long value) {
            return number(value, 4);
        }

        Writer blob(byte[] data) {
            return u32(data.length).fixed(data);
        }

        Writer text(String text) {
            return blob(text.getBytes(StandardCharsets.UTF_8));
        }

        byte[] done() {
            return out.toByteArray();
        }
    }

    /** Reads fields one after the other, and refuses what is no encoding (R3.1-1). */
    static final class Reader {
        private final byte[] data;
        private int at;

        Reader(byte[] data) {
            this.data = data;
        }

        static Refusal malformed(String what) {
            return new Refusal("BAD_ENCODING", what);
        }

        byte[] fixed(long size) {
            if (size > data.length - at) {
                throw malformed("the bytes end too early");
            }
            byte[] part = java.util.Arrays.copyOfRange(data, at, at + (int) size);
            at += (int) size;
            return part;
        }

        long number(int size) {
            long value = 0;
            for (byte each : fixed(size)) {
                value = value << 8 | each & 0xff;
            }
            return value;
        }

        long u32() {
            return number(4);
        }

        byte[] blob(long most) {
            long size = u32();
            if (size > most) {
                throw malformed("a field is too long");
            }
            return fixed(size);
        }

        String text(long least, long most) {
            byte[] raw = blob(most);
            if (raw.length < least) {
                throw malformed("a text is too short");
            }
            for (byte each : raw) {
                if (each == 0) {
                    throw malformed("a text holds U+0000"); // R3.1-3
                }
            }
            try {
                return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(raw)).toString();
            } catch (CharacterCodingException error) {
                throw malformed("a text is not UTF-8");
            }
        }

        byte[] rest() {
            return fixed(data.length - at);
        }

        int position() {
            return at;
        }

        void end() {
            if (at != data.length) {
                throw malformed("bytes follow the end");
            }
        }
    }
}
