package secagg;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Answers the lines of the conformance kit (docs/write-a-client.md). */
public final class Driver {
    private final Map<String, Long> taken = new HashMap<>();
    private Session session;

    private Driver() {}

    private Map<String, Object> answer(Map<String, Object> line) {
        try {
            return switch ((String) line.get("do")) {
                case "hello" -> hello();
                case "begin" -> begin(line);
                case "update" -> session == null
                        ? Map.of("messages", List.of())
                        : told(session.hear(Bytes.unhex((String) line.get("update")), now(line)));
                case "bind" -> told(session.bind(now(line)));
                case "refused" -> leave((String) line.get("code"));
                case "sum" -> sum(Bytes.unhex((String) line.get("packed")));
                default -> throw new IllegalArgumentException("no line is called " + line.get("do"));
            };
        } catch (Refusal refusal) {
            System.err.println(refusal.code + ": " + refusal.getMessage());
            return leave(refusal.code);
        }
    }

    private static Map<String, Object> hello() {
        Map<String, Object> made = new LinkedHashMap<>();
        made.put("name", "secagg.jvm");
        made.put("version", "0.1.0");
        made.put("profiles", List.of(1));
        made.put("graphs", List.of("complete"));
        made.put("mechanisms", List.of());
        made.put("restart", null);
        return made;
    }

    private Map<String, Object> begin(Map<String, Object> line) {
        session = null;
        if (Boolean.TRUE.equals(line.get("forget"))) {
            taken.clear();
        }
        Offer offer = Offer.decode(Bytes.unhex((String) line.get("offer")));
        Offer.require(
                offer.aggregator.equals(line.get("aggregator")), "UNAUTHENTICATED", "another aggregator has answered");
        String key = Json.write(List.of(offer.aggregator, offer.task));
        Offer.require(
                offer.number > taken.getOrDefault(key, -1L), "REPLAYED_SESSION", "the number was seen before");
        offer.checkClock(now(line));
        checkPolicy(offer, limits(line));
        long[] input = input((List<?>) line.get("vector"), offer);
        taken.put(key, offer.number);
        session = new Session(offer, (String) line.get("name"), input);
        return told(session.join());
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> limits(Map<String, Object> line) {
        return (Map<String, Object>) line.get("limits");
    }

    private static void checkPolicy(Offer offer, Map<String, Object> limits) {
        List<?> profiles = (List<?>) limits.get("profiles");
        List<?> suites = (List<?>) limits.get("suites");
        List<?> graphs = (List<?>) limits.get("graphs");
        Object dropouts = limits.get("max_dropouts");
        boolean holds = profiles.contains(BigDecimal.ONE)
                && suites.contains(BigDecimal.valueOf(offer.suite))
                && graphs.contains("complete")
                && offer.degree == 0 // this client has no rings
                && offer.noiseBlock.length == 0 // and no noise
                && !Boolean.TRUE.equals(limits.get("require_noise"))
                && offer.minClients >= number(limits, "min_clients")
                && offer.maxClients <= number(limits, "max_clients")
                && offer.minSurvivors >= number(limits, "min_survivors")
                && (dropouts == null || offer.maxDropouts <= number(limits, "max_dropouts"))
                && offer.colluders >= number(limits, "min_colluders")
                && (!Boolean.TRUE.equals(limits.get("require_majority")) || 2 * offer.threshold > offer.maxClients)
                && offer.dimension <= number(limits, "max_dimension")
                && 64 - Long.numberOfLeadingZeros(offer.modulus - 1) <= number(limits, "max_modulus_bits");
        Offer.require(holds, "POLICY_VIOLATION", "the session crosses one of this client's limits");
    }

    private static long number(Map<String, Object> from, String key) {
        return ((BigDecimal) from.get(key)).longValueExact();
    }

    private static double now(Map<String, Object> line) {
        return ((BigDecimal) line.get("now")).doubleValue();
    }

    /** Return the residues of the vector; refuse one that cannot be summed (R14.1-1). */
    private static long[] input(List<?> vector, Offer offer) {
        Offer.require(vector.size() == offer.dimension, "BAD_INPUT", "the vector has another length");
        Residues residues = new Residues(offer.modulus);
        long[] made = new long[vector.size()];
        for (int i = 0; i < made.length; i++) {
            try {
                made[i] = residues.of(Long.parseLong(String.valueOf(vector.get(i))));
            } catch (NumberFormatException error) {
                throw new Refusal("BAD_INPUT", "an entry is no whole number");
            }
        }
        return made;
    }

    private Map<String, Object> told(Session.Step step) {
        if (step.released) {
            return Map.of("released", true); // the sum is still to be read
        }
        if (!step.ended.isEmpty()) {
            session = null;
            return Map.of("ended", step.ended);
        }
        Map<String, Object> made = new LinkedHashMap<>();
        made.put("messages", step.messages.stream().map(Bytes::hex).toList());
        if (step.view.length > 0) {
            made.put("view", Bytes.hex(step.view));
        }
        return made;
    }

    private Map<String, Object> leave(String code) {
        session = null;
        return Map.of("left", code);
    }

    private Map<String, Object> sum(byte[] packed) {
        List<Object> entries = new ArrayList<>();
        for (long each : session.sum(packed)) {
            entries.add(Long.toString(each));
        }
        return Map.of("sum", entries);
    }

    /** Answer line after line until the input ends. */
    public static void main(String[] words) throws IOException {
        Driver driver = new Driver();
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.print(Json.write(driver.answer(Json.object(line))) + "\n");
            out.flush();
        }
    }
}
