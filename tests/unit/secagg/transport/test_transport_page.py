"""docs/transport.md is what deployers match their proxies to: it must be true."""

import ast
import dataclasses
import re
import subprocess
from pathlib import Path

import pytest

import secagg
from secagg.errors import FIRST_LOCAL, ErrorCode
from secagg.pki.expiry import WARNED_BEFORE
from secagg.protocol.messages import BUNDLE_BYTES
from secagg.protocol.profiles import RoundDeadlines
from secagg.server.aggregator import HELD_REFRESH_SECONDS
from secagg.server.call_guards import (
    MESSAGES_OF_ONE_CALLER,
    UPLOADS_OF_ONE_CALLER,
    CallLimits,
)
from secagg.server.rpc.limits import AggregatorLimits
from secagg.transport import channel_options
from secagg.transport.connection import CallDeadlines
from secagg.transport.handshake import HANDSHAKE_SECONDS
from secagg.transport.handshake_limits import (
    MOST_CONNECTIONS,
    PROBES,
    RESERVED_FILES,
    AdmissionLimits,
)
from secagg.transport.peer_identity import PeerIdentity, Role
from secagg.transport.relay import Rejection
from secagg.transport.status import usual_error
from secagg.transport.tls import identity_of, read_certificates
from secagg.wire import calls

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "transport.md").read_text()

ADMISSION = AdmissionLimits()
DEADLINES, LIMITS, ROUNDS = CallDeadlines(), CallLimits(), RoundDeadlines()
ROOM = (calls.MAX_MESSAGE_BYTES - 128) // BUNDLE_BYTES


@pytest.mark.parametrize(
    "row",
    [
        f"| advert, upload status | {DEADLINES.small:g} s |",
        (
            "| offer, shares, chunk, reveal, update, fetched piece | "
            f"{DEADLINES.large:g} s |"
        ),
        (
            "| a request for a session, while no session is open | "
            f"{calls.MAX_HELD_MS / 1000 - HELD_REFRESH_SECONDS:g} to "
            f"{calls.MAX_HELD_MS / 1000:g} s, or as long as the client says; "
            f"polled again every {HELD_REFRESH_SECONDS:g} s |"
        ),
        (
            "| waiting requests for a session | "
            f"{AggregatorLimits().held_per_identity} of one client, "
            f"{AggregatorLimits().held} of all |"
        ),
        f"| stream of updates | {DEADLINES.stream:g} s |",
        (
            "| idle stream | as long as it has said: "
            f"{calls.LEAST_QUIET_SECONDS:g} s after an update, then a third of the "
            f"round, {calls.LEAST_QUIET_SECONDS:g} to "
            f"{calls.MAX_QUIET_SECONDS:g} s |"
        ),
        f"| handshake that identifies the peer | {HANDSHAKE_SECONDS:g} s |",
        f"ends within {WARNED_BEFORE.days} days",
        f"DNS:{PeerIdentity('example.org', Role.SERVER, 'aggregator').dns_name}",
        f"| any unary call | {LIMITS.unary_seconds:g} s |",
        f"| the first message of TLS, whole | {ADMISSION.handshake_seconds:g} s |",
        (
            "| from its turn to the first call under a certificate | "
            f"{ADMISSION.handshake_seconds:g} s |"
        ),
        (
            f"| open connections | {MOST_CONNECTIONS}, or a third of the files that "
            f"{RESERVED_FILES} leave"
        ),
        f"| connections that have not begun TLS | {ADMISSION.waiting} |",
        f"without a call under a certificate | {ADMISSION.per_address} |",
        f"| TLS handshakes under way | {ADMISSION.handshakes} |",
        f"| connections of one client | {ADMISSION.per_identity} |",
        f"| connections of the health port | {PROBES.connections} |",
        f"| any stream | {LIMITS.watch_seconds:g} s |",
        f"| advertise, share, unmask rounds | {ROUNDS.advertise_keys} s each |",
        f"| masked-input round | {ROUNDS.masked_input} s |",
        (
            "| keepalive ping | every "
            f"{channel_options.KEEPALIVE_CLIENT_MS // 1000} s | client | no reply for "
            f"{channel_options.KEEPALIVE_TIMEOUT_MS // 1000} s:"
        ),
        f"| keepalive ping | every {channel_options.KEEPALIVE_SERVER_MS // 1000} s |",
        (
            "| pings that the aggregator tolerates | every "
            f"{channel_options.MIN_PING_INTERVAL_MS // 1000} s |"
        ),
        (
            "| age of a connection | "
            f"{channel_options.MAX_CONNECTION_AGE_MS // 60_000} min, "
            f"{channel_options.MAX_CONNECTION_GRACE_MS // 60_000} min grace |"
        ),
        f"whose requests have at most {channel_options.MAX_HEALTH_BYTES >> 10} KiB |",
        f"| any message, either way | {calls.MAX_MESSAGE_BYTES >> 20} MiB |",
        (
            "| one chunk of an upload, one fetched piece "
            f"| {calls.MAX_CHUNK_BYTES >> 20} MiB |"
        ),
        f"| message inside an update | {calls.MAX_INLINE_BYTES >> 20} MiB |",
        f"| neighbours of one client | {ROOM // 1000} {ROOM % 1000} |",
        f"| error detail | {calls.MAX_DETAIL_BYTES >> 10} KiB |",
        f"| open calls of one client | {LIMITS.calls_at_once} |",
        f"| open streams of one client | {LIMITS.watches_at_once} |",
        (
            f"| calls of one client | {LIMITS.calls_per_second:g}/s, bursts of "
            f"{LIMITS.burst} |"
        ),
        f"| open calls of one connection | {channel_options.MAX_CONCURRENT_STREAMS} |",
        (
            "| bytes under way before the aggregator asks for them | "
            f"{channel_options.LOOKAHEAD_BYTES >> 10} KiB |"
        ),
        (
            f"| messages that are being received | {LIMITS.bodies_at_once}, "
            f"{MESSAGES_OF_ONE_CALLER} of one client |"
        ),
        (
            "| chunks of uploads that are received or in work | "
            f"{LIMITS.uploads_at_once}, {UPLOADS_OF_ONE_CALLER} of one client |"
        ),
        f"up to {LIMITS.uploads_waiting} more wait at their senders",
        (
            "| receiving the message of a call, once it is its turn | "
            f"{LIMITS.body_seconds:g} s |"
        ),
        f"gRPC: {channel_options.RETRY_ATTEMPTS} attempts",
    ],
)
def test_the_page_states_the_value_in_force(row):
    assert row in PAGE


def test_the_unmasking_and_sharing_rounds_share_their_row():
    rounds = dataclasses.asdict(ROUNDS)
    rounds.pop("masked_input")
    assert len({seconds for seconds in rounds.values() if seconds}) == 1


# What answers calls of clients.
ANSWERING = (
    "protocol/descriptor.py",
    "protocol/messages/*.py",
    "protocol/parameters.py",
    "protocol/server/*.py",
    "server/aggregator.py",
    "server/aggregator.py",
    "server/rpc/grpc_server.py",
    "server/call_guards.py",
    "server/rpc/guards.py",
    "server/session/*.py",
    "server/task/runner.py",
    "storage/spool.py",
    "wire/calls.py",
    "wire/calls.py",
)
UNUSUAL = {
    # Before there is a name no party can be at fault.
    ("UNAUTHENTICATED", "ServiceError"),
    # A chunk beyond the size that was announced is a lie, a gap is an accident.
    ("UPLOAD_CORRUPT", "RemoteProtocolError"),
    # The operator is told that the task was ended; clients are answered that it is.
    ("TASK_OVER", "SessionAbortedError"),
}


def raised():
    """Yield number and class of every error that these modules make."""
    package = Path(secagg.__file__).parent
    for path in (p for pattern in ANSWERING for p in sorted(package.glob(pattern))):
        for node in ast.walk(ast.parse(path.read_text())):
            maker = getattr(node, "func", None)
            if not isinstance(maker, ast.Attribute) or maker.attr != "error":
                continue
            kinds = [k.value.id for k in node.keywords if k.arg == "kind"]
            for named in ast.walk(maker.value):
                if isinstance(named, ast.Attribute) and named.attr.isupper():
                    usual = type(ErrorCode[named.attr].error("")).__name__
                    yield named.attr, (kinds or [usual])[0]


def test_error_classes_on_the_page_match_the_code_that_raises_them():
    found = set(raised())
    assert len(found) > 15
    assert found >= UNUSUAL
    # Numbers of this host never travel.
    travel = {each for each in found - UNUSUAL if ErrorCode[each[0]] < FIRST_LOCAL}
    for name, kind in travel:
        assert type(usual_error(ErrorCode[name])).__name__ == kind, name


def test_aggregator_and_transport_limits_agree_on_streams():
    assert AggregatorLimits().watches_per_identity == LIMITS.watches_at_once


def test_every_rejection_reason_is_on_the_page():
    for reason in Rejection:
        assert f"`{reason.value}`" in PAGE or reason is Rejection.STOPPING, reason


def test_openssl_issues_a_certificate_with_the_names_of_the_page(tmp_path):
    (extensions,) = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    wanted = "[req]\ndistinguished_name = name\n[name]\n[wanted]\n"
    (tmp_path / "openssl.cnf").write_text(wanted + extensions)
    options = (
        "-x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 "
        "-extensions wanted -subj /CN=aggregator -keyout key.pem -out server.pem"
    )
    subprocess.run(
        ["openssl", "req", "-config", "openssl.cnf", *options.split()],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    (certificate,) = read_certificates(tmp_path / "server.pem")
    identity = identity_of(certificate)
    assert identity == PeerIdentity("example.org", Role.SERVER, "aggregator")
