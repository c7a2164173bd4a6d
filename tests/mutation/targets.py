"""What is mutated, and which tests have to notice."""

from typing import Final

__all__ = ["FILES", "TESTS"]

FILES: Final = tuple(
    f"secagg/{name}.py"
    for name in (
        "protocol/checks",
        "protocol/agreement",
        "protocol/membership",
        "protocol/client_rounds",
        "protocol/server_rounds",
        "protocol/client",
        "protocol/server",
        "protocol/share_bundles",
        "protocol/refund",
        "protocol/reconstruction",
        "protocol/disputes",
        "protocol/neighbors",
        "protocol/ring_safety",
        "protocol/noise_terms",
        "messages",
        "parameters",
        "profiles",
        "policy",
        "edge_odds",
        "ring_odds",
        "enrolment/rules",
        "enrolment/credential",
        "enrolment/documents",
        "enrolment/revocation",
        "primitives/canonical",
        "primitives/transcript",
        "primitives/merkle",
        "primitives/signature",
        "primitives/key_agreement",
        "primitives/share_encoding",
        "audit/receipt",
    )
)

# Everything that plays or decodes the protocol inside one process: a process of its
# own would import the file as it is.
TESTS: Final = (
    "tests/unit/secagg/protocol",
    "tests/unit/secagg/enrolment",
    "tests/unit/secagg/audit",
    "tests/unit/secagg/primitives",
    "tests/unit/secagg/test_messages.py",
    "tests/unit/secagg/test_parameters.py",
    "tests/unit/secagg/test_edge_odds.py",
    "tests/unit/secagg/test_ring_odds.py",
    "tests/unit/secagg/test_neighbors.py",
    "tests/unit/secagg/test_graph_choice.py",
    "tests/unit/secagg/test_enrolment_vectors.py",
    "tests/unit/secagg/test_protocol_vectors.py",
    "tests/unit/secagg/test_session_vectors.py",
    "tests/unit/secagg/client",
    "tests/unit/secagg/server",
    "tests/hostile",
    "tests/fuzz",
    "tests/property/test_sessions.py",
)
