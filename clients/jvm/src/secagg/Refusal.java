package secagg;

/** A violation for which the client leaves; the code is one of PROTOCOL 9. */
final class Refusal extends RuntimeException {
    private static final long serialVersionUID = 1L;
    final String code;

    Refusal(String code, String message) {
        super(message);
        this.code = code;
    }
}
