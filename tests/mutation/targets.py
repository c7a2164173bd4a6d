"""What is mutated, and which tests have to notice."""

from typing import Final

FILES: Final = tuple(
    f"secagg/{name}.py"
    for name in (
        "protocol/client/checks",
        "protocol/agreement",
        "protocol/membership",
        "protocol/client/handlers",
        "protocol/client/machine",
        "protocol/server/handlers",
        "protocol/server/unmasking",
        "protocol/server/states",
        "protocol/server/machine",
        "protocol/share_bundles",
        "protocol/refund",
        "protocol/graphs/neighbours",
        "protocol/graphs/ring_safety",
        "protocol/noise_terms",
        "protocol/messages",
        "protocol/parameters",
        "protocol/descriptor",
        "protocol/profiles",
        "protocol/policy",
        "protocol/graphs/bounds",
        "protocol/enrolment",
        "crypto/canonical",
        "crypto/transcript",
        "crypto/signature",
        "crypto/key_agreement",
        "crypto/shamir",
        "protocol/receipts/receipt",
        "protocol/receipts/verifier",
        "client/gate",
        "client/budget",
        "transport/peer_identity",
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
            "crypto",
            "pki/test_certificate_authority.py",
            "pki/test_client_identity.py",
            "pki/test_credential_issuer.py",
            "pki/test_enrolment_documents.py",
            "pki/test_enrolment_rules.py",
            "test_messages.py",
            "test_bounds.py",
            "test_neighbours.py",
            "test_enrolment_vectors.py",
            "test_protocol_vectors.py",
            "test_session_vectors.py",
            "server/test_audit_receipts.py",
            "test_distributed_dp.py",
            "test_adaptive_clip.py",
            "test_local_randomiser.py",
            "test_replacement.py",
            "test_wrong_uses.py",
            "distributed_dp",
            "client/test_gate.py",
            "client/test_offer_checks.py",
            "client/test_client_enrolment.py",
            "client/test_rosters_are_counted.py",
            "client/test_budget.py",
            "client/test_budget_identity.py",
            "client/test_total_budget.py",
            "transport/test_peer_identity.py",
        )
    ),
    "tests/rules",
    "tests/integration/test_aggregator_identity.py",
    "tests/hostile",
    "tests/fuzz/test_mutated_bytes.py",
)
PASSED_OVER: Final = (
    # Failing disks, restored stores and every split of views take minutes.
    "tests/hostile/test_failing_disk.py",
    "tests/hostile/test_split_views.py",
    "tests/hostile/test_restored_server.py",
    "tests/hostile/test_restored_state.py",
    "tests/hostile/test_no_secret_in_a_full_run.py",
)
