"""`secagg graph`: from a security level to the graph of a cohort."""

import math
from typing import TYPE_CHECKING, Annotated

import typer

from secagg.cli.options import JSONOption, warn_if_experimental
from secagg.cli.output import Output

if TYPE_CHECKING:
    from fractions import Fraction

    from secagg.protocol.graphs.choice import GraphAdversary, GraphChoice
    from secagg.protocol.profiles import Profile


def graph(  # noqa: PLR0913 - one parameter per flag
    *,
    clients: Annotated[
        int, typer.Option("--clients", min=2, max=1 << 20, help="Size of the cohort.")
    ],
    corrupt: Annotated[
        str,
        typer.Option(
            "--corrupt",
            metavar="FRACTION",
            help="Part of the cohort that helps the server, like 0.05 or 1/3.",
        ),
    ] = "0.05",
    dropout: Annotated[
        str,
        typer.Option(
            "--dropout",
            metavar="FRACTION",
            help="Part of the cohort that may drop out, like 0.1 or 1/10.",
        ),
    ] = "0.1",
    sigma: Annotated[
        int,
        typer.Option(
            "--sigma",
            min=1,
            max=128,
            help="A session may show more than its sum with chance 2^-sigma.",
        ),
    ] = 40,
    eta: Annotated[
        int,
        typer.Option(
            "--eta",
            min=1,
            max=128,
            help="A session may end for want of share holders with chance 2^-eta.",
        ),
    ] = 30,
    adversary: Annotated[
        str,
        typer.Option(
            "--adversary",
            metavar="[curious|semi-malicious|malicious]",
            help="What the server may do.",
        ),
    ] = "curious",
    as_json: JSONOption = False,
) -> None:
    """Find the sparsest graph that is safe, with its degree and threshold.

    Fractions are rounded down to whole clients. Where no sparse graph is safe the
    complete one is named, with degree 0 as in the settings, and why. The command
    fails where that one is unsafe, too.

    Example: secagg graph --clients 1000 --corrupt 0.1 --dropout 0.3
    """
    from secagg.cli.key_traffic import key_traffic
    from secagg.protocol.graphs.choice import GraphAdversary, GraphDemand, choose_graph
    from secagg.protocol.parameters import MAX_CLIENTS, Graph

    output = Output(as_json=as_json)
    try:
        server = GraphAdversary(adversary)
    except ValueError:
        known = ", ".join(GraphAdversary)
        raise typer.BadParameter(
            f"--adversary must be one of {known}, not {adversary!r}"
        ) from None
    demand = GraphDemand.from_rates(
        clients,
        corrupt=_parse_fraction(corrupt, "--corrupt"),
        dropout=_parse_fraction(dropout, "--dropout"),
        graph_bits=sigma,
        liveness_bits=eta,
    )
    chosen = choose_graph(demand, server)
    # By the name that the literature has for a ring with k neighbours.
    kind = "harary" if chosen.graph is Graph.RING else str(chosen.graph)
    traffic = key_traffic(chosen, clients=clients)
    profile = _profile_for(server, chosen)
    if chosen.why:
        output.line(f"the complete graph: {chosen.why}")
    if profile is None:
        output.line("no profile defends against a semi-malicious server: figures only")
    elif clients > MAX_CLIENTS:
        output.line(
            f"figures only: this release serves no profile {profile.label} for "
            f"{clients} clients"
        )
    else:
        warn_if_experimental(profile, output)
    shown = [
        ("graph", kind),
        ("profile", "" if profile is None else profile.label),
        ("degree", str(chosen.degree or clients - 1)),
        ("threshold", f"{chosen.threshold} to {chosen.max_threshold}"),
        ("quorum", "" if chosen.quorum is None else str(chosen.quorum)),
        ("honest clients that may not be included", str(chosen.unseen or "")),
        ("colluders, losses", f"{demand.colluders}, {demand.max_losses}"),
        ("too many corrupt holders", _as_text(chosen.failure_bounds.holder_bits)),
        ("cut into parts", _as_text(chosen.failure_bounds.cut_bits)),
        ("too few holders left", _as_text(chosen.failure_bounds.liveness_bits)),
        ("keys and shares, up", f"{traffic.up:,} bytes a client"),
        ("keys and shares, down", f"{traffic.down:,} bytes a client"),
    ]
    output.pairs([(name, value) for name, value in shown if value], title="Graph")
    result: dict[str, object] = {
        "graph": kind,
        "degree": chosen.degree,
        "threshold": chosen.threshold,
        "threshold_max": chosen.max_threshold,
        "colluders": demand.colluders,
        "losses": demand.max_losses,
        **chosen.failure_bounds.to_dict(),
        "bytes_up_per_client": traffic.up,
        "bytes_down_per_client": traffic.down,
        "profile": None if profile is None else profile.label,
        "reason": chosen.why,
    }
    if chosen.quorum is not None:
        result["quorum"] = chosen.quorum
        result["not_included_unseen"] = chosen.unseen
    output.result(result)


def _profile_for(server: "GraphAdversary", chosen: "GraphChoice") -> "Profile | None":
    """Return the profile that a graph against this server belongs to, if any."""
    from secagg.protocol.graphs.choice import GraphAdversary
    from secagg.protocol.parameters import Graph
    from secagg.protocol.profiles import Profile

    if server is GraphAdversary.SEMI_MALICIOUS:
        return None
    if server is GraphAdversary.CURIOUS:
        return Profile.HONEST_CURIOUS_SERVER
    if chosen.graph is Graph.K_OUT:
        return Profile.MALICIOUS_SERVER_SPARSE
    return Profile.MALICIOUS_SERVER


def _parse_fraction(text: str, option: str) -> "Fraction":
    """Return the exact rational that was typed."""
    from fractions import Fraction

    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(
            f"{option} must be a number like 0.1 or 1/10, not {text!r}"
        ) from None
    if not 0 <= value <= 1:
        raise typer.BadParameter(f"{option} must lie between 0 and 1, not {text}")
    return value


def _as_text(bits: float) -> str:
    return "impossible" if math.isinf(bits) else f"2^-{bits:.1f}"
