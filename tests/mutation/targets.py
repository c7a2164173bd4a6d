"""What is mutated, and which tests have to notice."""

from typing import Final

__all__ = ["FILES", "PASSED_OVER", "TESTS"]

FILES: Final = tuple(
    f"secagg/{name}.py"
    for name in (
        "protocol/checks",
        "protocol/agreement",
        "protocol/membership",
        "protocol/client_rounds",
        "protocol/client_endings",
        "protocol/server_rounds",
        "protocol/server_unmasking",
        "protocol/server_endings",
        "protocol/server_states",
        "protocol/client",
        "protocol/server",
        "protocol/share_bundles",
        "protocol/refund",
        "protocol/reconstruction",
        "protocol/disputes",
        "protocol/neighbors",
        "protocol/ring_safety",
        "protocol/noise_terms",
        "messages/encoding",
        "messages/advert",
        "messages/roster",
        "messages/edges",
        "messages/shares",
        "messages/survivors",
        "messages/ending",
        "messages/envelope",
        "parameters",
        "descriptor",
        "profiles",
        "policy",
        "edge_odds",
        "ring_odds",
        "enrolment/rules",
        "enrolment/credential",
        "enrolment/documents",
        "enrolment/revocation",
        "primitives/canonical",
        "primitives/roster_set",
        "primitives/transcript",
        "primitives/merkle",
        "primitives/signature",
        "primitives/key_agreement",
        "primitives/share_encoding",
        "audit/comparison",
        "audit/receipt",
        "audit/verifier",
        "client/gate",
        "client/gate_checks",
        "client/budget",
        "transport/identity",
        "distributed_dp/task",
    )
)

# What plays or decodes the protocol inside one process, and is quick: a process of its
# own would import the file as it is.
TESTS: Final = (
    *(
        f"tests/unit/secagg/{name}"
        for name in (
            "protocol",
            "enrolment",
            "audit",
            "primitives",
            "test_messages.py",
            "test_bounds.py",
            "test_parameters.py",
            "test_edge_odds.py",
            "test_ring_odds.py",
            "test_neighbors.py",
            "test_graph_choice.py",
            "test_enrolment_vectors.py",
            "test_protocol_vectors.py",
            "test_session_vectors.py",
            "server/test_audit_receipts.py",
            "test_distributed_dp.py",
            "test_adaptive_clip.py",
            "test_local_randomiser.py",
            "client/test_gate.py",
            "client/test_budget.py",
            "transport/test_identity.py",
            "transport/test_certificates.py",
        )
    ),
    "tests/integration/test_aggregator_identity.py",
    "tests/hostile",
    "tests/fuzz/test_mutated_bytes.py",
)
PASSED_OVER: Final = (
    # Disks that fail, books that are put back, every split of views: minutes.
    "tests/hostile/test_failing_disk.py",
    "tests/hostile/test_split_views.py",
    "tests/hostile/test_restored_server.py",
    "tests/hostile/test_restored_state.py",
    "tests/hostile/test_no_secret_in_a_full_run.py",
)
