"""Small cohorts for tests, and a session that records its messages."""

from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from typing import Any

from secagg.client.gate import OwnRules
from secagg.crypto.modular import UnsignedArray, zeros
from secagg.distributed_dp import NoisyTask, PrivacyReport, plan
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import ClientEvent, ClientOutput, ServerEvent, ServerOutput
from secagg.protocol.graphs.bounds import edge_bound, server_demand
from secagg.protocol.noise_terms import NoiseTerms
from secagg.protocol.parameters import Graph, ProtocolParameters
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
)
from secagg.protocol.profiles import (
    HonestCuriousParameters,
    MaliciousParameters,
    Profile,
    RoundDeadlines,
    SparseParameters,
)
from secagg.simulation.driver import InProcessSession, simulated_trust

# For tests that are not about policy: every floor at its lowest.
LENIENT_POLICY = ClientPolicy(
    profiles=frozenset(Profile),
    graphs=frozenset(Graph),
    min_graph_bits=1,
    min_clients=2,
    min_survivors=2,
    require_majority=False,
    require_noise=False,
)


@cache
def _report_of(parameters: ProtocolParameters) -> PrivacyReport:
    return NoisyTask.from_parameters(parameters).report()


def report_of(task: NoisyTask) -> PrivacyReport:
    """Return what a task costs, computed once in a process."""
    return _report_of(task.parameters)


def lenient_rules(cohort: ClientPolicy = LENIENT_POLICY) -> OwnRules:
    """Return client rules without limits on privacy."""
    waived = ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT)
    return OwnRules(limits=waived, cohort=cohort, report_of=report_of)


def parameters_for(
    clients: int,
    *,
    dimension: int,
    threshold: int,
    **overrides: Any,
) -> ProtocolParameters:
    """Return parameters that tolerate every loss down to the threshold."""
    graph_bits = overrides.pop("graph_bits", 40 if overrides.get("degree") else 0)
    fields: dict[str, Any] = {
        "modulus": 1 << 20,
        "dimension": dimension,
        "min_clients": max(2, threshold),
        "max_clients": clients,
        "threshold": threshold,
        "min_survivors": max(2, threshold),
        "max_dropouts": max(0, clients - threshold),
        "max_losses": max(0, clients - threshold),
        "tail": HonestCuriousParameters(graph_bits),
    }
    return ProtocolParameters(**(fields | overrides))


def signing_parameters_for(
    clients: int,
    *,
    dimension: int,
    colluders: int = 0,
    **overrides: Any,
) -> ProtocolParameters:
    """Return parameters of profile malicious-server, as lenient as its rules allow.

    The threshold, which is the quorum too, is the least of R3.2-8 unless it is given.
    """
    fields: dict[str, Any] = {
        "threshold": (clients + colluders) // 2 + 1,
        "tail": MaliciousParameters(simulated_trust()),
        "deadlines": RoundDeadlines.of(Profile.MALICIOUS_SERVER),
    } | overrides
    fewest = max(fields["threshold"], colluders + 2)
    fields = {"min_survivors": fewest, "min_clients": fewest} | fields
    return parameters_for(clients, dimension=dimension, colluders=colluders, **fields)


def sparse_parameters_for(
    clients: int,
    *,
    dimension: int,
    degree: int,
    colluders: int = 0,
    losses: int = 0,
    **overrides: Any,
) -> ProtocolParameters:
    """Return parameters of profile malicious-server-sparse for a roster of one size.

    Args:
        clients: n; all are present when clients draw their neighbours.
        dimension: d.
        degree: k.
        colluders: c.
        losses: Of the whole roster.
        overrides: Any field.  Threshold and quorum are the least of R3.2-9 for one bit
            unless they are given.
    """
    left = clients - losses
    bound = edge_bound(
        clients=clients,
        degree=degree,
        colluders=colluders,
        losses=losses,
        demanded_bits=server_demand(1),
    )
    quorum = max((clients + colluders) // 2 + 1, left)
    fields: dict[str, Any] = {
        "threshold": max(2, bound.least_threshold),
        "degree": degree,
        "tail": SparseParameters(
            simulated_trust(),
            graph_bits=1,
            in_cap=3 * degree,
            quorum=quorum,
        ),
        "deadlines": RoundDeadlines.of(Profile.MALICIOUS_SERVER_SPARSE),
        "min_clients": clients,
        "min_survivors": left - bound.set_apart,
        "max_dropouts": losses,
        "max_losses": losses,
    }
    return parameters_for(
        clients, dimension=dimension, colluders=colluders, **(fields | overrides)
    )


@cache  # planning takes longest in many tests
def noised_task(  # noqa: PLR0913 - a budget in one line
    parameters: ProtocolParameters,
    *,
    steps: int = 1,
    participations: int | None = None,
    spare: int = 0,
    ladder: int = 0,
    epsilon: float = 8.0,
) -> NoisyTask:
    """Return a task with a privacy budget of some sessions, spare ones besides."""
    made = plan(
        clients=parameters.max_clients,
        dimension=parameters.dimension,
        l2_clip=1.0,
        epsilon=epsilon,
        delta=1e-5,
        mechanism="skellam",
        scale_factor=64.0,  # a fine grid: nothing has to be searched for
        steps=steps,
        participations=participations,
        spare=spare,
        min_survivors=parameters.min_survivors,
        colluders=parameters.colluders,
        ladder=ladder,
    )
    return NoisyTask.from_plan(made, parameters)


def with_noise(
    parameters: ProtocolParameters,
    **budget: Any,
) -> ProtocolParameters:
    """Return parameters of a task with a privacy budget of some sessions."""
    return noised_task(parameters, **budget).parameters


def offer_of(
    parameters: ProtocolParameters,
    **changes: Any,
) -> SessionDescriptor:
    """Return the offer of a task's first session, for tests that need just any."""
    fields: dict[str, Any] = {
        "aggregator": "aggregator",
        "task_id": "t",
        "session_number": 1,
        "server_nonce": bytes(32),
        "session_end": 1_800_000_600,
        "payload_hash": b"",
    }
    return SessionDescriptor(parameters=parameters, **(fields | changes))


def any_noise(parameters: ProtocolParameters, share_holders: int) -> NoiseTerms:
    """Read a noise block that describes nothing, for tests that add no noise.

    It tolerates every loss that the parameters tolerate.
    """
    context = sha256(parameters.noise_block + share_holders.to_bytes(4, "big")).digest()
    return NoiseTerms(context, tolerated_losses=parameters.max_dropouts)


def one_hot(number: int, dimension: int, modulus: int) -> UnsignedArray:
    """Return a vector that is m-1 at its own coordinate and 0 elsewhere.

    In the sum, a coordinate that is not m-1 for a survivor and 0 otherwise means a
    loss, a replay or a mix-up.
    """
    vector = zeros(dimension, modulus)
    vector[number % dimension] = modulus - 1
    return vector


@dataclass
class RecordedSession(InProcessSession):
    """Keeps every accepted event, as a journal does.

    Attributes:
        journal: Events of the server.
        client_journals: Events of each client, by its number.
    """

    journal: list[ServerEvent] = field(init=False, default_factory=list)
    client_journals: dict[int, list[ClientEvent]] = field(
        init=False, default_factory=dict
    )

    def step_server(self, event: ServerEvent) -> tuple[ServerOutput, ...]:
        """Apply an event at the server and keep it."""
        outputs = super().step_server(event)
        self.journal.append(event)
        return outputs

    def to_client(self, number: int, event: ClientEvent) -> tuple[ClientOutput, ...]:
        """Apply an event at a client and keep it."""
        outputs = super().to_client(number, event)
        self.client_journals.setdefault(number, []).append(event)
        return outputs
