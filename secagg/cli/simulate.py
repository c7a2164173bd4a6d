"""`secagg simulate`: one session of many clients in this process, measured."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from secagg.cli.failures import exit_code_of
from secagg.cli.options import (
    JSONOption,
    ProfileOption,
    named_profile,
    warn_if_experimental,
)
from secagg.cli.output import Output

if TYPE_CHECKING:
    from secagg.crypto.entropy import Entropy
    from secagg.protocol.noise_terms import NoiseCertificate
    from secagg.protocol.parameters import ProtocolParameters
    from secagg.protocol.profiles import Profile
    from secagg.simulation import SimulatedSession


_GRAPH_BITS: Final = 40


def simulate(  # noqa: PLR0913 - one parameter per flag
    *,
    clients: Annotated[
        int, typer.Option("--clients", min=2, max=65_535, help="Size of the cohort.")
    ] = 100,
    dimension: Annotated[
        int,
        typer.Option(
            "--dimension", min=1, max=1 << 30, help="Entries of one client's vector."
        ),
    ] = 1 << 14,
    profile: ProfileOption = "honest-curious-server",
    degree: Annotated[
        int,
        typer.Option(
            "--degree",
            min=0,
            help="Neighbours of each client on a ring, or that each draws; 0: the "
            "complete graph, or the fewest to draw that are safe.",
        ),
    ] = 0,
    threshold: Annotated[
        int,
        typer.Option(
            "--threshold",
            min=0,
            help="Shares that rebuild a secret; 0: one more than half, or the least "
            "that is safe where clients draw their neighbours.",
        ),
    ] = 0,
    dropout_rate: Annotated[
        float,
        typer.Option(
            "--dropout-rate",
            min=0.0,
            max=1.0,
            help="Fraction of clients that vanish, spread over all rounds.",
        ),
    ] = 0.0,
    xnoise: Annotated[
        bool,
        typer.Option(
            "--xnoise",
            help="Add noise for epsilon 1, enough for the loss of all but --threshold "
            "clients, and remove what no dropout has made necessary.",
        ),
    ] = False,
    modulus_bits: Annotated[
        int,
        typer.Option("--modulus-bits", min=1, max=62, help="Add modulo 2^bits."),
    ] = 20,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            min=0,
            help="Repeat a run: all keys and losses derive from this number.",
        ),
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Run one session of many clients in this process and measure it.

    The clients and the server are the real state machines; only the network is
    missing. Every client's input has a single one, at a place of its own.

    In profiles that distrust the server, clients have credentials of an issuer made
    for the occasion.

    Example: secagg simulate --clients 200 --dimension 100000 --dropout-rate 0.1
    """
    from secagg.errors import ErrorCode
    from secagg.protocol.rounds import ROUNDS
    from secagg.simulation import plan_losses, simulate_session

    output = Output(as_json=as_json)
    chosen = named_profile(profile)
    entropy = _entropy_of(seed)
    losses = plan_losses(clients, dropout_rate, entropy)
    parameters = _parameters_for(
        chosen,
        clients=clients,
        # The cohort promises no more than what the chosen losses leave.
        left=clients - len(losses.losses),
        dimension=dimension,
        modulus_bits=modulus_bits,
        degree=degree,
        threshold=threshold,
        xnoise=xnoise,
    )
    unseen = parameters.max_omitted(clients)
    warn_if_experimental(chosen, output)
    if chosen.is_experimental:
        output.line(
            f"a server that lies can leave {unseen} honest inputs out of the sum, and "
            "no client detects it"
        )
    output.line(
        f"{clients} clients, {dimension} entries modulo 2^{parameters.bits}, "
        f"{len(losses.losses)} will vanish"
    )
    with output.progress("simulating") as show:
        session = simulate_session(
            parameters,
            clients=clients,
            losses=losses,
            entropy=entropy,
            on_progress=lambda which, done, of: show(ROUNDS[which].title, done, of),
        )
    _print_costs(session, output)
    output.result(_result_values(parameters, session, clients=clients, unseen=unseen))
    if not session.is_exact:
        raise typer.Exit(code=exit_code_of(ErrorCode.INTERNAL))


def _entropy_of(seed: int | None) -> "Entropy":
    """Return the randomness of a seed, or the system's without one."""
    from secagg.crypto.entropy import SeededEntropy, SystemEntropy
    from secagg.crypto.secret_bytes import SecretBytes

    if seed is None:
        return SystemEntropy()
    try:
        key = seed.to_bytes(32, "big")
    except OverflowError:
        raise typer.BadParameter("--seed must be below 2^256") from None
    return SeededEntropy(SecretBytes(key), b"simulation")


def _parameters_for(  # noqa: PLR0913 - one argument per option
    profile: "Profile",
    *,
    clients: int,
    left: int,
    dimension: int,
    modulus_bits: int,
    degree: int,
    threshold: int,
    xnoise: bool,
) -> "ProtocolParameters":
    """Return the parameters of the cohort that the options describe.

    Args:
        profile: Named threat model.
        clients: All of them.
        left: Those that stay until the end.
        dimension: Entries of a vector.
        modulus_bits: Sums are exact modulo 2 to this power.
        degree: Of a ring, or how many each draws; 0 as for `--degree`.
        threshold: 0 as for `--threshold`.
        xnoise: Whether there is noise that survivors can take back.

    Raises:
        ServiceError: BAD_SETTINGS or INFEASIBLE; there is no such session.
    """
    from secagg.errors import ErrorCode, RemoteProtocolError
    from secagg.protocol.parameters import ProtocolParameters
    from secagg.protocol.profiles import (
        HonestCuriousParameters,
        MaliciousParameters,
        Profile,
        RoundDeadlines,
        check_supported,
    )
    from secagg.simulation.driver import simulated_trust

    is_drawn = profile is Profile.MALICIOUS_SERVER_SPARSE
    if is_drawn and degree == 0:
        degree = _safe_degree(clients, left=left, threshold=threshold)
    shares = threshold or (degree or clients) // 2 + 1
    survivors = max(2, shares) if xnoise else min(clients, max(2, shares, left))
    try:
        check_supported(profile)
        parameters = ProtocolParameters(
            tail=HonestCuriousParameters()
            if is_drawn
            else MaliciousParameters(simulated_trust())
            if profile.has_identities
            else HonestCuriousParameters(_GRAPH_BITS if degree else 0),
            deadlines=RoundDeadlines.of(profile),
            modulus=1 << modulus_bits,
            dimension=dimension,
            min_clients=max(survivors, degree + 2 if degree else 2),
            max_clients=clients,
            threshold=shares,
            degree=degree,
            min_survivors=survivors,
            max_dropouts=clients - shares,
            max_losses=clients - shares,
        )
        if is_drawn:
            parameters = _with_drawn_neighbours(
                parameters, left=left, threshold=threshold
            )
        parameters.validate()
        return _with_ladder(parameters) if xnoise else parameters
    except RemoteProtocolError as error:
        # The parameters raise it for an impossible session; here options are at fault.
        raise ErrorCode.BAD_SETTINGS.error(
            f"no session can run with these options: {error}",
            fix="Correct that option; see secagg simulate --help.",
        ) from None


def _print_costs(session: "SimulatedSession", output: Output) -> None:
    """Print what a session has cost, for people."""
    costs = session.costs
    output.pairs(
        (
            ("exact", "yes" if session.is_exact else "NO"),
            ("inputs in the sum", str(session.survivors)),
            *_noise_lines(session.noise),
            ("client CPU, mean", f"{costs.client_cpu_seconds_mean:.4f} s"),
            ("client CPU, max", f"{costs.client_cpu_seconds_max:.4f} s"),
            ("sent by clients", f"{costs.bytes_up:,} bytes"),
            ("sent to clients", f"{costs.bytes_down:,} bytes"),
            ("sent to one client", f"{costs.bytes_down_per_client:,.0f} bytes"),
            (
                "kept by one client",
                f"{costs.client_state_bytes:,} bytes between rounds",
            ),
            ("peak memory, all roles", f"{costs.peak_rss_bytes / 2**20:.0f} MiB"),
        ),
        title="Simulated session",
    )
    output.table(
        ("round", "CPU of all clients", "of the server", "bytes up", "bytes down"),
        [
            (
                name.replace("_", " "),
                f"{each.client_cpu_seconds:.4f} s",
                f"{each.server_cpu_seconds:.4f} s",
                f"{each.bytes_up:,}",
                f"{each.bytes_down:,}",
            )
            for name, each in costs.rounds.items()
        ],
        title="Rounds",
        numeric=(1, 2, 3, 4),
    )


def _result_values(
    parameters: "ProtocolParameters",
    session: "SimulatedSession",
    *,
    clients: int,
    unseen: int,
) -> dict[str, object]:
    """Return the same for programs."""
    from dataclasses import asdict

    costs = session.costs
    return {
        "exact": session.is_exact,
        "clients": clients,
        "clients_lost": session.clients_lost,
        "survivors": session.survivors,
        "threshold": parameters.threshold,
        "degree": parameters.degree,
        "profile": parameters.profile.label,
        "is_experimental": parameters.profile.is_experimental,
        "quorum": parameters.quorum,
        "unseen": unseen,
        "client_cpu_seconds": {
            "mean": costs.client_cpu_seconds_mean,
            "max": costs.client_cpu_seconds_max,
        },
        "server_cpu_seconds": costs.server_cpu_seconds,
        "rounds": [
            {"round": name, **asdict(each)} for name, each in costs.rounds.items()
        ],
        "bytes_up": costs.bytes_up,
        "bytes_down": costs.bytes_down,
        "bytes_down_per_client": costs.bytes_down_per_client,
        "client_state_bytes": costs.client_state_bytes,
        "peak_rss_bytes": costs.peak_rss_bytes,
        **_figures(session.noise),
    }


def _safe_degree(clients: int, *, left: int, threshold: int) -> int:
    """Return the fewest neighbours that clients can draw, if any client may drop out.

    Raises:
        ServiceError: INFEASIBLE; no number of them is safe for so few clients.
    """
    from secagg.protocol.graphs.choice import GraphDemand, drawn_edges

    demand = GraphDemand(
        min_clients=left,
        max_clients=clients,
        min_survivors=left,
        max_losses=clients - left,
        colluders=0,
        graph_bits=_GRAPH_BITS,
    )
    return drawn_edges(demand, threshold=threshold or None).degree


def _with_drawn_neighbours(
    parameters: "ProtocolParameters", *, left: int, threshold: int
) -> "ProtocolParameters":
    """Return parameters of a cohort in which clients draw their neighbours.

    Args:
        parameters: Of the same cohort on a ring.
        left: Clients that stay until the end.
        threshold: t; 0 for the least that is safe.
    """
    from dataclasses import replace

    from secagg.protocol.graphs.bounds import edge_bound, server_demand
    from secagg.protocol.profiles import RoundDeadlines, SparseParameters
    from secagg.simulation.driver import simulated_trust

    clients, degree = parameters.max_clients, parameters.degree
    bounds = [
        edge_bound(
            clients=size,
            degree=degree,
            colluders=0,
            losses=size - left,
            demanded_bits=server_demand(_GRAPH_BITS),
        )
        for size in (left, clients)
    ]
    quorum = max(clients // 2 + 1, left)
    tail = SparseParameters(
        simulated_trust(), _GRAPH_BITS, in_cap=3 * degree, quorum=quorum
    )
    least = max(2, *(each.least_threshold for each in bounds))
    return replace(
        parameters,
        tail=tail,
        deadlines=RoundDeadlines.of(tail.PROFILE),
        threshold=threshold or least,
        min_clients=left,
        min_survivors=left - max(each.set_apart for each in bounds),
        max_dropouts=clients - left,
        max_losses=clients - left,
    )


def _with_ladder(parameters: "ProtocolParameters") -> "ProtocolParameters":
    """Return parameters of a task with noise that survivors can take back."""
    from secagg.distributed_dp import NoisyTask, plan
    from secagg.protocol.policy import colluder_fraction_of

    made = plan(
        clients=parameters.max_clients,
        dimension=parameters.dimension,
        l2_clip=1.0,
        epsilon=1.0,
        delta=1e-5,
        mechanism="skellam",
        min_survivors=parameters.min_survivors,
        colluder_fraction=colluder_fraction_of(parameters.profile),
        ladder=4,
    )
    return NoisyTask.from_plan(made, parameters).parameters


def _noise_lines(noise: "NoiseCertificate | None") -> tuple[tuple[str, str], ...]:
    """Return lines about the noise of a simulated sum."""
    if noise is None:
        return ()
    ratio = float(noise.present / noise.required)
    return (
        ("noise required", f"variance {float(noise.required):.6g} steps²"),
        ("noise present", f"{ratio:.4f} of it after {noise.losses} losses"),
    )


def _figures(noise: "NoiseCertificate | None") -> dict[str, object]:
    """Return the noise of a simulated sum as JSON values."""
    if noise is None:
        return {}
    shown = noise.to_dict()
    return {
        "noise_required": shown["noise_required"],
        "noise_present": shown["noise_present"],
        "noise_certificate": shown,
    }
