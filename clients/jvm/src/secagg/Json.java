package secagg;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** JSON of the kit's lines: objects are maps, arrays lists, numbers {@link BigDecimal}. */
final class Json {
    private static final int MOST_NESTED = 16;
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> object(String line) {
        Json reader = new Json(line);
        Object found = reader.value(0);
        reader.space();
        if (!(found instanceof Map) || reader.at != line.length()) {
            throw new IllegalArgumentException("the line is no JSON object");
        }
        return (Map<String, Object>) found;
    }

    private Object value(int depth) {
        space();
        if (depth > MOST_NESTED) {
            throw new IllegalArgumentException("the line is nested too deeply");
        }
        char first = text.charAt(at);
        if (first == '{') {
            return members(depth);
        }
        if (first == '[') {
            return entries(depth);
        }
        if (first == '"') {
            return string();
        }
        int start = at;
        while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        String word = text.substring(start, at);
        return switch (word) {
            case "null" -> null;
            case "true" -> true;
            case "false" -> false;
            default -> new BigDecimal(word);
        };
    }

    private Map<String, Object> members(int depth) {
        Map<String, Object> found = new LinkedHashMap<>();
        at++;
        while (!closes('}')) {
            space();
            String key = string();
            space();
            expect(':');
            found.put(key, value(depth + 1));
        }
        return found;
    }

    private List<Object> entries(int depth) {
        List<Object> found = new ArrayList<>();
        at++;
        while (!closes(']')) {
            found.add(value(depth + 1));
        }
        return found;
    }

    private boolean closes(char end) {
        space();
        if (text.charAt(at) == ',') {
            at++;
            return false;
        }
        if (text.charAt(at) == end) {
            at++;
            return true;
        }
        return false;
    }

    private String string() {
        expect('"');
        StringBuilder found = new StringBuilder();
        for (char each = text.charAt(at++); each != '"'; each = text.charAt(at++)) {
            if (each != '\\') {
                found.append(each);
                continue;
            }
            char escaped = text.charAt(at++);
            int known = "bfnrt".indexOf(escaped);
            if (escaped == 'u') {
                found.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
                at += 4;
            } else {
                found.append(known < 0 ? escaped : "\b\f\n\r\t".charAt(known));
            }
        }
        return found.toString();
    }

    private void expect(char wanted) {
        if (text.charAt(at++) != wanted) {
            throw new IllegalArgumentException("the line is no JSON");
        }
    }

    private void space() {
        while (at < text.length() && text.charAt(at) <= ' ') {
            at++;
        }
    }

    /** Write a value of maps, lists, texts, numbers, booleans and null. */
    static String write(Object value) {
        if (value instanceof Map<?, ?> map) {
            List<String> parts = new ArrayList<>();
            map.forEach((key, each) -> parts.add(write(key) + ":" + write(each)));
            return "{" + String.join(",", parts) + "}";
        }
        if (value instanceof List<?> list) {
            return "[" + String.join(",", list.stream().map(Json::write).toList()) + "]";
        }
        if (value instanceof String text) {
            StringBuilder made = new StringBuilder("\"");
            for (char each : text.toCharArray()) {
                if (each == '"' || each == '\\') {
                    made.append('\\');
                }
                made.append(each < ' ' ? String.format("\\u%04x", (int) each) : String.valueOf(each));
            }
            return made.append('"').toString();
        }
        return String.valueOf(value);
    }
}
