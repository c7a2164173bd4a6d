"""Messages to an operator when no aggregator runs, or none is reachable."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
import typer
from secagg_testing.cohorts import offer_of, parameters_for

from secagg.cli import main
from secagg.config import load_task_settings
from secagg.errors import ErrorCode
from secagg.protocol.messages import Aborted, Fate
from secagg.server.admin.operations import SessionFilter
from secagg.server.admin.views import StoreViews, sessions_view
from secagg.server.session.report import SessionReceipt
from secagg.server.task.setup import settle_task
from secagg.server.task.stored import privacy_folder_of
from secagg.storage.budget_ledger import (
    BudgetKey,
    Charge,
    ChargeState,
    Claim,
    ClaimAdversary,
    Settlement,
)
from secagg.storage.change import Change, NewSession, Side
from secagg.storage.changes import PutClaim
from secagg.storage.open_store import open_store

HOST = """
[server]
state_dir = "state"
[tls]
ca = "ca.pem"
certificate = "server.pem"
key = "server.key"
"""
TASK = """
[task]
id = "counts"
steps = 2
[vector]
dimension = 6
[cohort]
min_clients = 8
max_clients = 10
min_survivors = 7
[noise]
mechanism = "skellam"
epsilon = 4.0
delta = 1e-5
l2_clip = 1.0
"""
CLIENT = """
[client]
server = "127.0.0.1:1"
task = "counts"
state_dir = "client"
[tls]
ca = "ca.pem"
certificate = "client.pem"
key = "client.key"
[policy]
max_epsilon = 8.0
max_delta = 1e-5
"""


async def write_stores(place):
    state = place / "state"
    state.mkdir()
    store = await open_store(f"sqlite:{state / 'store.sqlite3'}")
    settings = load_task_settings(place / "server.toml")
    await settle_task(settings, store, reports=privacy_folder_of(state, "counts"))
    new = NewSession(role=Side.SERVER, task="counts", number=1, header=b"h")
    await store.commit(Change(key=f"server/{'ab' * 32}", create=new, round=1))
    await store.close()
    (place / "client").mkdir()
    ledger = await open_store(f"sqlite:{place / 'client' / 'store.sqlite3'}")
    # The task releases one sum: of those that were void, one came back.
    void = ((2, ChargeState.VOID), (3, ChargeState.VOID))
    for number, settled in ((1, ChargeState.KEPT), *void, (4, None)):
        charge = Charge(
            budget=BudgetKey(
                trust_domain="domain", aggregator="aggregator", task="counts"
            ),
            session_id=bytes([number]),
            noise_digest=b"n",
            allowed=3,
            refunds=1,
        )
        new = NewSession(
            role=Side.CLIENT, task="counts", number=number, header=b"h", peer="agg"
        )
        key = f"client/{number}"
        created = await ledger.commit(Change(key=key, create=new))
        at = {"key": key, "expect": 0, "previous": created.chain}
        await ledger.commit(Change(**at, charge=charge, spend=True))
        if settled is not None:
            last = Settlement(task="counts", session_id=bytes([number]), state=settled)
            await ledger.commit(Change(**at, settle=last, end=b""))
    for number, task in enumerate(("counts", "means")):
        claim = Claim(
            data="patients",
            holder=bytes(16),
            budget=BudgetKey(trust_domain="domain", aggregator="aggregator", task=task),
            noise_digest=bytes(32),
            against=ClaimAdversary.SERVER,
            epsilon=0.25 + number,
            delta=1e-6,
            shift=None,
            distance=0.0,
            added_delta=0.0,
        )
        await ledger.commit(PutClaim(claim, after=number))
    await ledger.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("operator")
    (place / "server.toml").write_text(HOST + TASK)
    (place / "client.toml").write_text(CLIENT)
    (place / "task.toml").write_text(TASK)
    asyncio.run(write_stores(place))
    return place


@pytest.fixture
def run_twice(place, capsys):
    def run(*words, config="server.toml", code=0):
        words = [*words, "--config", str(place / config)]
        assert main(words) == code
        text = capsys.readouterr().out
        assert main([*words, "--json"]) == code
        return text, json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_the_tasks_of_a_stopped_server_are_read_from_its_store(run_twice, json_answer):
    text, answer = run_twice("tasks", "list")
    json_answer("tasks list", answer)
    assert "session 1: joining" in text
    (task,) = answer["tasks"]
    assert (task["task"], task["state"], task["sessions_left"]) == (
        "counts",
        "running",
        3,
    )
    assert run_twice("tasks", "show", "counts")[1] == task
    json_answer("tasks show", task)
    text, answer = run_twice("status")
    json_answer("status", answer)
    assert "no aggregator runs" in text
    assert answer["tasks"] == [task]
    assert answer["server"]["is_running"] is False
    answer = run_twice("tasks", "show", "other", code=50)[1]
    assert answer["error"]["code"] == 40
    json_answer("error", answer)


def test_the_sessions_of_a_stopped_server_are_read_from_its_store(
    run_twice, json_answer
):
    text, answer = run_twice("sessions", "list", "--task", "counts")
    json_answer("sessions list", answer)
    json_answer("sessions show", answer["sessions"][0])
    assert "running" in text
    (session,) = answer["sessions"]
    assert (session["number"], session["outcome"]) == (1, "running")
    assert run_twice("sessions", "list", "--outcome", "released")[1]["sessions"] == []
    assert run_twice("sessions", "list", "--since", "2100-01-01")[1]["sessions"] == []
    assert run_twice("sessions", "show", "1", "--task", "counts")[1] == session
    run_twice("sessions", "show", "2", "--task", "counts", code=50)
    run_twice("sessions", "list", "--task", "other", code=50)


def test_a_misspelt_outcome_is_rejected_with_a_suggestion(run_twice):
    error = run_twice("sessions", "list", "--outcome", "U3_TO_SMALL", code=2)[1][
        "error"
    ]
    assert "did you mean U3_TOO_SMALL?" in error["message"]


async def test_a_failed_session_is_found_behind_many_successful_ones(tmp_path):
    descriptor = offer_of(parameters_for(3, dimension=1, threshold=2), task_id="t")
    cancelled = Aborted(Fate.NEVER_FIXED, ErrorCode.CANCELLED, "why")
    receipt = SessionReceipt(descriptor=descriptor, outcome=cancelled).encode()
    store = await open_store(f"sqlite:{tmp_path / 'store.sqlite3'}")
    for number in range(1, 6):
        key = f"server/{number:064x}"
        new = NewSession(role=Side.SERVER, task="t", number=number, header=b"h")
        stands = await store.commit(Change(key=key, create=new, round=1))
        if number > 2:
            end = Change(key=key, expect=0, previous=stands.chain, end=receipt)
            await store.commit(end)

    async def listed(**wanted):
        return [
            each["number"]
            for each in await sessions_view(store, SessionFilter(**wanted))
        ]

    assert await listed(limit=2) == [5, 4]
    assert await listed(limit=2, outcome="running") == [2, 1]
    assert await listed(limit=1, outcome="running") == [2]
    assert await listed(limit=2, outcome="CANCELLED") == [5, 4]
    assert await listed(since=1e12) == []
    await store.close()


def test_server_and_client_report_the_spent_budget(run_twice, monkeypatch, json_answer):
    # The report was computed when the task was planned, and is not again.
    monkeypatch.setattr("secagg.distributed_dp.task.NoisyTask.report", lambda _: 1 / 0)
    text, answer = run_twice("budget")
    json_answer("budget", answer)
    (budget,) = answer["budgets"]
    assert "epsilon server" in text
    assert answer["role"] == "server"
    assert 0 < budget["epsilon_model_reader"] <= budget["epsilon_server"] <= 4.0
    assert (budget["spent"], budget["left"], budget["spare_left"]) == (0, 3, 1)
    run_twice("budget", "--task", "other", code=50)
    assert run_twice("budget", config="client.toml")[1] == {
        "role": "client",
        "budgets": [
            {
                "task": "counts",
                "aggregator": "aggregator",
                "trust_domain": "domain",
                "charges": 3,
                "left": 0,
                "given": 3,
                "under_way": 1,
                "given_back": 1,
            }
        ],
    }


def test_a_client_reports_the_claims_on_its_data(run_twice, place, json_answer):
    text = (place / "client.toml").read_text()
    total = 'data = "patients"\ntotal_epsilon = 2.0\ntotal_delta = 1e-5\n'
    (place / "total.toml").write_text(text + total)
    text, answer = run_twice("budget", config="total.toml")
    json_answer("budget of a client", answer)
    data = answer["data"]
    claims = data.pop("claims")
    assert data == {
        "data": "patients",
        "total_epsilon": 2.0,
        "total_delta": 1e-5,
        "rule": "basic",
        "spent_epsilon": 1.5,
        "spent_delta": 2e-6,
        "remaining_epsilon": 0.5,
        "remaining_delta": pytest.approx(8e-6),
        "remaining_gaussian_epsilon": None,
        "kept_in": str(place / "client"),
        "fits": True,
    }
    assert [(each["task"], each["epsilon"]) for each in claims] == [
        ("counts", 0.25),
        ("means", 1.25),
    ]
    assert {each["against"] for each in claims} == {"server"}
    assert "epsilon 1.5 of 2 and delta 2e-06 of 1e-05 are claimed" in text
    assert "any further task may take epsilon 0.5 with delta up to 8e-06" in text
    assert "means" in text
    # A client of two aggregators is asked in the same way.
    tls = 'ca = "ca.pem"\ncertificate = "client.pem"\nkey = "client.key"\n'
    both = "".join(
        f'[{name}]\nname = "{name}"\naddress = "{name}.example.org:1"\n{tls}'
        'receipt_key = "ed25519:..."\n'
        for name in ("leader", "helper")
    )
    (place / "both.toml").write_text(
        f'[client]\ntask = "counts"\nstate_dir = "client"\n{both}[policy]\n'
        f"max_epsilon = 8.0\nmax_delta = 1e-5\nmin_survivors = 3\n{total}"
    )
    assert run_twice("budget", config="both.toml")[1]["data"] == data | {
        "claims": claims
    }
    # Claims kept elsewhere, where nothing was claimed yet.
    (place / "total.toml").write_text(
        (place / "total.toml").read_text() + 'data_dir = "elsewhere"\n'
    )
    _, answer = run_twice("budget", config="total.toml")
    assert answer["data"]["claims"] == []
    assert answer["data"]["remaining_epsilon"] == 2.0


async def test_a_charged_session_that_continues_is_not_reported_as_failed(
    place, tmp_path
):
    """Its sum is missing and its session is spent: that is no fault yet."""
    store = await open_store(f"sqlite:{tmp_path / 'store.sqlite3'}")
    await settle_task(
        load_task_settings(place / "server.toml"), store, reports=tmp_path
    )

    async def spare():
        (view,) = await StoreViews(store, tmp_path).budgets(task="counts")
        return view["spent"], view["spare_left"], view["is_short"]

    async def paid(number):
        key = f"server/{number}"
        new = NewSession(role=Side.SERVER, task="counts", number=number, header=b"h")
        stands = await store.commit(Change(key=key, create=new, round=1))
        assert await spare() == (number - 1, max(0, 2 - number), number > 2)
        spent = Change(key=key, expect=0, previous=stands.chain, spend=True)
        return key, await store.commit(spent)

    # Two sums and a spare session; the first two sessions fail after they were paid.
    for number in (1, 2):
        key, stands = await paid(number)
        assert await spare() == (number, 2 - number, False)
        await store.commit(Change(key=key, expect=0, previous=stands.chain, end=b"r"))
    assert await spare() == (2, 0, True)
    await store.close()


@pytest.mark.parametrize(
    "words",
    [
        ["tasks", "add", "task.toml"],
        ["tasks", "apply", "task.toml"],
        ["tasks", "pause", "counts"],
        ["tasks", "resume", "counts"],
        ["tasks", "stop", "counts"],
        ["sessions", "abort", "1", "--task", "counts"],
        ["sessions", "watch"],
        ["drain"],
    ],
    ids=" ".join,
)
def test_commands_that_change_state_require_a_running_aggregator(
    run_twice, place, words
):
    words = [str(place / word) if word.endswith(".toml") else word for word in words]
    error = run_twice(*words, code=58)[1]["error"]
    assert "no aggregator answers" in error["message"]
    assert "secagg server" in error["next_step"]


@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["lines", "json"])
def test_a_follower_of_sessions_is_told_at_once_that_it_is_connected(
    place, capsys, monkeypatch, as_json
):
    change = {"task": "t", "number": 7, "round": "joining", "joined": 1, "needed": 2}
    change |= {"answered": 1, "expected": 3, "lost": [], "reason": ""}
    # Of three who have joined two have to unmask.
    later = change | {"round": "unmasking", "joined": 3}

    async def changes(*_):
        yield {}
        assert "following the sessions" in "".join(capsys.readouterr())
        yield change
        yield later

    monkeypatch.setattr("secagg.server.admin.channel.watch_admin", changes)
    words = ["sessions", "watch", *as_json, "--config", str(place / "server.toml")]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    if as_json:
        assert [json.loads(line) for line in lines] == [change, later]
    else:
        assert lines == [
            "t session 7: joining, 1 joined, 2 needed, 0 lost",
            "t session 7: unmasking, 3 joined, 1 of 3 answered, 0 lost",
        ]


def test_operator_commands_load_no_server_module():
    """Operators look when a machine is busy, and imports are the slowest then."""
    code = (
        "import sys, secagg.server.admin.channel; from secagg.cli import app; "
        "app._command(app._loaded_for(['tasks'])); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = {*done.stdout.split()}
    heavy = {"grpc", "numpy", "secagg.server.aggregator", "secagg.storage"}
    assert not heavy & loaded
    commands = {each for each in loaded if each.startswith("secagg.cli.")}
    assert "secagg.cli.operator" in commands
    assert "secagg.cli.client" not in commands


def test_on_a_terminal_the_plan_is_shown_with_a_prompt_only_if_requested(
    place, capsys, monkeypatch
):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def refuse(*_, **__):
        raise typer.Abort

    monkeypatch.setattr("typer.confirm", refuse)
    words = ["tasks", "add", str(place / "task.toml")]
    # No server was asked: that would have ended with 58.
    assert main([*words, "--config", str(place / "server.toml")]) == 130
    assert "epsilon" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["status"], ["server", "--show-settings"], ["doctor"], ["state", "check"]]
)
def test_settings_at_the_default_place_need_no_option(
    words, place, tmp_path, monkeypatch, capsys
):
    """One rule for all: what the working directory holds is meant."""
    monkeypatch.setattr("secagg.cli.operator._USUAL_PLACES", (Path("server.toml"),))
    monkeypatch.chdir(place)
    named = main([*words, "--config", "server.toml", "--json"])
    answer = capsys.readouterr().out.splitlines()[-1]
    assert main([*words, "--json"]) == named
    assert json.loads(capsys.readouterr().out.splitlines()[-1]).keys() == (
        json.loads(answer).keys()
    )
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    monkeypatch.chdir(nowhere)
    assert main([*words, "--json"]) == 72
    error = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    assert "--config" in error["next_step"]


def test_the_database_is_reported_even_if_the_local_disk_is_lost(
    tmp_path, capsys, postgres_url
):
    async def made():
        database = await asyncpg.connect(postgres_url)
        await database.execute("DROP SCHEMA IF EXISTS secagg CASCADE")
        await database.close()
        await (await open_store(postgres_url)).close()

    asyncio.run(made())
    text = HOST.replace('"state"', f'"gone"\nstore = "{postgres_url}"')
    (tmp_path / "server.toml").write_text(text + TASK)
    assert main(["status", "--config", str(tmp_path / "server.toml"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["server"]["is_running"], said["tasks"]) == (False, [])
    assert said["server"]["free_bytes"] > 0
