"""`secagg status`, `secagg budget` and `secagg drain`: state of an aggregator."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from secagg.cli.operator import ServerFileOption, ask, look, server_file
from secagg.cli.options import JSONOption, SetOption
from secagg.cli.output import Output
from secagg.cli.tasks import task_rows

if TYPE_CHECKING:
    from secagg.config import ClientSettings
    from secagg.config.two_aggregators import SharingClientSettings


def status(*, config: ServerFileOption = None, as_json: JSONOption = False) -> None:
    """Show an aggregator and its tasks: what runs, who is missing, what is left.

    Reads the store of an aggregator that does not run.

    Example: secagg status --config server.toml
    """
    answer = look(config, "status")
    output = Output(as_json=as_json)
    if not as_json:
        _print_status(answer, output)
    output.result(answer)


def _print_status(answer: dict[str, Any], output: Output) -> None:
    """Print an aggregator and its tasks."""
    server = answer["server"]
    free = f"{server['free_bytes'] / 2**30:.1f} GiB free"
    if server["is_running"]:
        draining = ", draining" if server["is_draining"] else ""
        if server["address"] is None:
            output.line("the aggregator is starting: it plans its tasks")
            return
        output.line(
            f"the aggregator runs since {server['started']} at {server['address']}"
            f"{draining}; certificate: {server['certificate_days']} days left; {free}"
        )
        if server["refused_last_hour"]:
            counts = ", ".join(
                f"{name} {count}" for name, count in server["refused_last_hour"].items()
            )
            output.line(f"refused in the last hour: {counts}")
        for replica in answer["server"]["replicas"]:
            output.line(
                f"replica {replica['name']} {replica['version']} at "
                f"{replica['address'] or 'no address yet'}, since {replica['started']}"
                f", last seen {replica['silent_seconds']:g} s ago"
            )
    else:
        output.line(f"no aggregator runs; the figures are those of its store; {free}")
    output.table(
        ("task", "state", "sums", "sessions left", "now"),
        task_rows(answer["tasks"]),
        numeric=(3,),
    )


def budget(
    *,
    config: ServerFileOption = None,
    overrides: SetOption = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="ID", help="Only this task.")
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Show what an aggregator's tasks or a client have spent of privacy budgets.

    The settings file says which of the two, with the --set of a client. Epsilon and
    delta of a task hold against the server, for one client's data in all sessions that
    it may give: its participations and the spare sessions. For a client, `charges` is
    their number and `left` how many it may still give. Of a client whose data have a
    total (policy.data) all tasks with claims are listed.

    Example: secagg budget --config client.toml
    """
    from secagg.cli.checks.setups import ClientSetup, SharingSetup, load_setup

    output = Output(as_json=as_json)
    setup = load_setup(server_file(config), overrides or ())
    if isinstance(setup, ClientSetup | SharingSetup):
        answer = _client_budget(setup.settings, task)
    elif overrides:
        raise typer.BadParameter("--set goes with the settings file of a client")
    else:
        answer = look(config, "budget", task=task)
    budgets: list[dict[str, Any]] = answer["budgets"]
    if not as_json:
        if not budgets:
            output.line("no task with a privacy budget")
        for each in budgets:
            output.pairs(
                (name.replace("_", " "), "" if value is None else str(value))
                for name, value in each.items()
            )
            if each.get("is_short"):
                output.line(
                    "WARNING: fewer sessions are left than sums are missing",
                    style="bold red",
                )
        if "data" in answer:
            _print_data(answer["data"], output)
    output.result(answer)


def _client_budget(
    settings: "ClientSettings | SharingClientSettings", task: str | None
) -> dict[str, Any]:
    """Return what a client has spent, and what is claimed of data with a total.

    Its process must not run meanwhile.
    """
    import asyncio

    from secagg.config.common import total_budget
    from secagg.storage.budget_ledger import (
        BudgetKey,
        ChargeRow,
        ChargeState,
        budget_of,
    )
    from secagg.storage.directories import STORE_FILE
    from secagg.storage.open_store import reading
    from secagg.storage.queries import ListCharges

    state_dir = settings.client.state_dir
    wanted = task or settings.client.task
    total = total_budget(settings.policy)

    async def rows() -> tuple[ChargeRow, ...]:
        with reading(state_dir / STORE_FILE) as store:
            return await store.read(ListCharges(wanted))

    charges = asyncio.run(rows())

    def given(key: BudgetKey) -> dict[str, Any]:
        own = [row for row in charges if row.budget == key]
        # One noise, so one number of sessions that are covered, and that come back.
        allowed = max((row.allowed for row in own), default=None)
        refunds = max((row.refunds for row in own), default=0)
        spent = budget_of(own, key, allowed=allowed or 0, refunds=refunds)
        return {
            "task": wanted,
            "aggregator": key.aggregator or None,
            "trust_domain": key.trust_domain or None,
            # Unknown before the first session: the number stands in its offer.
            "charges": allowed,
            "left": None if allowed is None else spent.left,
            "given": spent.given,
            "under_way": sum(row.state is ChargeState.BOUND for row in own),
            "given_back": spent.void,
        }

    # Aggregators that use one name for their tasks have a budget each.
    nothing = BudgetKey(trust_domain="", aggregator="", task=wanted)
    keys = dict.fromkeys(row.budget for row in charges) or {nothing: None}
    budgets = [given(key) for key in keys]
    if total is None:
        return {"role": "client", "budgets": budgets}
    from secagg.client.total_budget import look_at_use

    use = asyncio.run(look_at_use(total, state_dir))
    return {"role": "client", "budgets": budgets, "data": use.to_dict()}


def _print_data(data: dict[str, Any], output: Output) -> None:
    """Print what tasks have claimed of a client's data, and what is left."""
    from secagg.distributed_dp import text_above, text_below

    delta = text_above(data["spent_delta"], 3)
    at = f"and delta {delta} of {data['total_delta']:g} are claimed"
    if data["rule"] == "gaussian":
        at = f"is claimed, at delta {delta} and as Gaussian releases add up"
    output.line(
        f"data {data['data']}: epsilon {text_above(data['spent_epsilon'], 4)} of "
        f"{data['total_epsilon']:g} {at}; kept in {data['kept_in']}"
    )
    left = f"epsilon {text_below(data['remaining_epsilon'], 4)} with delta up to "
    left += text_below(data["remaining_delta"], 3)
    if data["remaining_gaussian_epsilon"] is not None:
        further = text_below(data["remaining_gaussian_epsilon"], 4)
        left += f"; one with Gaussian noise about epsilon {further}"
    output.line(f"any further task may take {left}")
    output.table(
        ("task", "aggregator", "epsilon", "delta", "against", "since"),
        [
            (
                each["task"],
                each["aggregator"],
                text_above(each["epsilon"], 4),
                text_above(each["delta"], 3),
                each["against"],
                each["since"],
            )
            for each in data["claims"]
        ],
        numeric=(2, 3),
    )


def drain(
    *,
    config: ServerFileOption = None,
    finish: Annotated[
        bool,
        typer.Option(
            "--finish", help="Let sessions that have their cohort come to their end."
        ),
    ] = False,
    as_json: JSONOption = False,
) -> None:
    """End an aggregator gently; sessions that are open then wait on the disk.

    Example: secagg drain --finish --config server.toml
    """
    output = Output(as_json=as_json)
    answer = ask(config, "drain", finish=finish)
    output.line(
        "the aggregator ends when its sessions are over"
        if finish
        else "the aggregator ends"
    )
    output.result(answer)
