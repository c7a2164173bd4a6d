"""Grid and mod over a loop in one process: losses, refusals, what is in the messages.

Of 400 entries the error has a relative spread of 3.5 percent; a test that allows 20
fails by chance once in 10^7 runs, a mean beyond five deviations once in 10^6.
"""

import re
import shutil
import sys
from importlib.metadata import version

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAdam, FedAvg
from secagg_testing.carrier import WAIVER
from secagg_testing.loop_grid import LoopGrid

import secagg
from secagg.errors import ErrorCode, LocalProtocolError
from secagg.integrations.flower import SecureGrid, SecureTask, secagg_mod
from secagg.integrations.flower.grid import ReplyClock
from secagg.integrations.flower.wire import (
    Instruction,
    instruction_record,
    read_reply,
    refusal_code,
)

NODES, DIMENSION = 6, 400
STAGES = ("advert", "shares", "view", "update", "answer")
COHORT = secagg.Cohort(min_clients=4, max_clients=NODES, min_survivors=4)
EXACT = "require_noise = false\n"


def model(value=0.0, dimension=DIMENSION):
    half = dimension // 2
    return ArrayRecord(
        {
            "layer/weight": Array(np.full((2, half // 2), value, np.float32)),
            "layer/bias": Array(np.full(dimension - half, value, np.float64)),
        }
    )


@pytest.fixture(scope="module")
def noisy():
    return SecureTask.planned(
        "digits",
        model(),
        clients=NODES,
        min_survivors=4,
        epsilon=10.0,
        delta=1e-5,
        rounds=2,
        l2_clip=4.0,
    )


@pytest.fixture
def exact():
    prepared = secagg.PreparedTask.exact(
        WAIVER, COHORT, dimension=DIMENSION, modulus_bits=20
    )
    return SecureTask("digits", prepared)


def renamed():
    """As many numbers as the model, in another array."""
    return ArrayRecord({"other": Array(np.ones(DIMENSION))})


class Clock:
    """A waiting task moves it on."""

    def __init__(self):
        self.instant = 0.0
        self.clock = ReplyClock(lambda: self.instant, self.pause)

    def pause(self, seconds):
        assert seconds >= 0
        self.instant += max(seconds, 1e-3)


class Deployment:
    """One app on all nodes, and the grid of its server."""

    def __init__(self, config, open_clients, mods=None):
        self.given, self.contents = {}, []
        self.update_of = lambda node: np.full(DIMENSION, 0.01 * (node % 10))
        self.answer = None
        self.app = ClientApp(mods=mods or [secagg_mod()])
        self.app.train()(self.train)
        self.app.train("other")(self.train)
        self.app.evaluate()(self.evaluate)
        self.app.query()(self.evaluate)
        self.grid = LoopGrid(self.app, NODES, config)
        self.nodes = self.grid.get_node_ids()
        self.clock = Clock()
        self.open_clients = open_clients

    def train(self, message, context):
        self.contents.append(message.content)
        update = self.update_of(context.node_id)
        self.given[context.node_id] = update
        if self.answer is not None:
            return self.answer(message)
        arrays, start = {}, 0
        for name in sorted(message.content["arrays"]):
            before = message.content["arrays"][name].numpy()
            part = update[start : start + before.size].reshape(before.shape)
            arrays[name] = Array((before + part).astype(before.dtype))
            start += before.size
        content = {
            "arrays": ArrayRecord(arrays),
            "metrics": MetricRecord({"num-examples": 10, "secret-loss": 0.123}),
        }
        return Message(RecordDict(content), reply_to=message)

    def evaluate(self, message, _):
        self.contents.append(message.content)
        metrics = MetricRecord({"num-examples": 1, "loss": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def start(self, task, rounds=1, kind=FedAvg, start=None, **choices):
        choices = {"fraction_evaluate": 0.0, "min_available_nodes": NODES} | choices
        strategy = kind(**choices)
        secure = SecureGrid(self.grid, task, strategy, clock=self.clock.clock)
        result = strategy.start(secure, start or model(), num_rounds=rounds)
        return secure, result

    def ask(self, node, records, kind="train"):
        (reply,) = self.grid.send_and_receive(
            [Message(RecordDict(records), node, kind)]
        )
        return reply

    def refusal(self, node, records, kind="train"):
        """Return the code by which a node has refused a message."""
        reply = self.ask(node, records, kind)
        assert reply.has_error()
        code = ErrorCode[reply.error.reason]
        assert reply.error.code == refusal_code(code)
        return code


@pytest.fixture
def deployment(config_in, open_clients):
    return Deployment(config_in, open_clients)


@pytest.fixture
def exact_deployment(config_in, open_clients, terms):
    return Deployment(lambda node: config_in(node, terms + EXACT), open_clients)


def flat(arrays):
    return np.concatenate(
        [arrays[name].numpy().astype(float).ravel() for name in sorted(arrays)]
    )


def test_the_versions_of_both_sides(capsys):
    with capsys.disabled():
        sys.stdout.write(f"\nFlower {version('flwr')}, secagg {version('secagg')}\n")
    assert (1, 41) <= tuple(map(int, version("flwr").split(".")[:2])) < (2, 0)


def losing(grid, stage, nodes):
    """Lose these nodes from their message of a stage on: they are silent."""
    asked = dict.fromkeys(nodes, 0)

    def is_lost(message):
        node = message.metadata.dst_node_id
        if node in asked:
            asked[node] += 1
        return node in asked and asked[node] > STAGES.index(stage)

    grid.is_lost = is_lost


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("clear", [True, False], ids=["exact", "noisy"])
def test_a_sum_is_that_of_the_survivors(stage, clear, request):
    name = "exact" if clear else "noisy"
    given = request.getfixturevalue("exact_deployment" if clear else "deployment")
    task = request.getfixturevalue(name)
    if clear:
        given.update_of = lambda node: np.arange(DIMENSION) % 7 * float(node % 10)
    losing(given.grid, stage, given.nodes[:2])
    secure, result = given.start(task)
    (total,) = secure.sums
    survivors = given.nodes if stage == "answer" else given.nodes[2:]
    assert total.inputs == len(survivors)
    assert set(given.given) == set(survivors)
    truth = sum(given.given[node] for node in survivors)
    if clear:
        np.testing.assert_array_equal(total.values, truth)
    else:
        found = float(np.sqrt(np.mean((total.values - truth) ** 2)))
        assert found == pytest.approx(total.standard_error, rel=0.2)
    np.testing.assert_allclose(flat(result.arrays), total.mean, rtol=1e-6, atol=1e-6)
    # One lost node costs one stage of waiting, and the end none.
    assert given.clock.instant < 300 + 60


@pytest.mark.parametrize("kind", ["FedAvgM", "FedAdam", "FedAdagrad", "FedYogi"])
def test_a_strategy_receives_the_mean_as_the_single_reply(
    kind, exact_deployment, exact
):
    given = exact_deployment
    given.update_of = lambda _: np.ones(DIMENSION)
    secure, result = given.start(exact, kind=getattr(strategies, kind))
    assert [each.inputs for each in secure.sums] == [NODES]
    assert (flat(result.arrays) > 0).all()
    assert result.arrays["layer/weight"].numpy().shape == (2, 100)
    assert result.train_metrics_clientapp.keys() == {1}


def test_fedprox_reaches_its_clients_with_its_configuration(exact_deployment, exact):
    given = exact_deployment
    given.update_of = lambda _: np.ones(DIMENSION)
    given.start(exact, kind=strategies.FedProx, proximal_mu=0.5)
    assert {each["config"]["proximal-mu"] for each in given.contents} == {0.5}
    assert all(each.keys() == {"arrays", "config"} for each in given.contents)


ALLOWED = {"FedAvg", "FedAvgM", "FedAdam", "FedAdagrad", "FedYogi", "FedProx"}


class OwnTraining(FedAvg):
    """A strategy that chooses the configuration of a round."""

    def configure_train(self, server_round, arrays, config, grid):
        config["lr"] = 0.1 / server_round
        return super().configure_train(server_round, arrays, config, grid)


class OwnSum(FedAvg):
    """A strategy that looks at single replies."""

    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, list(replies)[:1])


def test_strategies_that_read_single_replies_are_rejected(deployment, noisy):
    others = set(strategies.__all__) - ALLOWED - {"Result", "Strategy"}
    assert len(others) >= 8
    for name in sorted(others):
        kind = getattr(strategies, name)
        with pytest.raises(LocalProtocolError, match="looks at single replies"):
            SecureGrid(deployment.grid, noisy, kind.__new__(kind))
    with pytest.raises(LocalProtocolError, match="aggregate_train of its own"):
        SecureGrid(deployment.grid, noisy, OwnSum())
    with pytest.raises(LocalProtocolError, match="looks at single replies"):
        SecureGrid(deployment.grid, noisy, None)
    secure, _ = deployment.start(noisy, kind=OwnTraining)
    assert secure.sums[0].inputs == NODES
    assert {each["config"]["lr"] for each in deployment.contents} == {0.1}


def test_a_node_sends_only_masked_bytes(deployment, noisy):
    deployment.start(noisy)
    assert len(deployment.grid.up) == 6 * NODES  # the view is a message of its own
    for node, reply in deployment.grid.up:
        assert reply.content.keys() == {"secagg"}
        data = b"".join(each.data for each in reply.content["secagg"].values())
        assert b"loss" not in data
        for part in (deployment.given[node], deployment.given[node].astype("f4")):
            assert part.tobytes()[:64] not in data
    assert all(not context.state for context in deployment.grid.contexts.values())


def test_the_model_is_sent_once_to_each_node(deployment, noisy):
    deployment.start(noisy)
    with_model = [node for node, sent in deployment.grid.down if len(sent.content) > 1]
    assert sorted(with_model) == sorted(deployment.nodes)


# --- refusals of a node ---------------------------------------------------------------


def test_training_outside_a_session_is_refused(deployment):
    for kind in ("train", "train.other"):
        code = deployment.refusal(deployment.nodes[0], {"arrays": model()}, kind)
        assert code is ErrorCode.POLICY_VIOLATION
    assert deployment.contents == []


def test_messages_other_than_training_are_rejected_unless_evaluate_is_allowed(
    deployment, config_in, terms
):
    node = deployment.nodes[0]
    for kind in ("evaluate", "query"):
        code = deployment.refusal(node, {"arrays": model()}, kind)
        assert code is ErrorCode.POLICY_VIOLATION
    assert deployment.contents == []
    config_in(node, terms.replace("[policy]", "evaluate = true\n[policy]"))
    reply = deployment.ask(node, {"arrays": model()}, "evaluate")
    assert reply.content["metrics"]["loss"] == 0.5
    code = deployment.refusal(node, {"arrays": model()}, "query")
    assert code is ErrorCode.POLICY_VIOLATION


def last_with(deployment, node, stage):
    """The message of a stage to a node, as it was sent."""
    sent = [message for each, message in deployment.grid.down if each == node]
    return dict(sent[STAGES.index(stage)].content)


def test_a_node_answers_a_repeated_question_identically_and_no_other(
    exact_deployment, exact
):
    given, node = exact_deployment, exact_deployment.nodes[1]
    given.update_of = lambda _: np.ones(DIMENSION)
    losing(given.grid, "answer", given.nodes)
    given.start(exact)
    given.grid.is_lost = lambda _: False
    update = last_with(given, node, "update")
    first, second = given.ask(node, update), given.ask(node, update)
    assert read_reply(first.content) == read_reply(second.content)
    assert given.given.keys() == set(given.nodes)
    assert len(given.contents) == NODES  # the app was not called again
    question = last_with(given, node, "answer")
    answered = given.ask(node, question)
    assert read_reply(given.ask(node, question).content) == read_reply(answered.content)
    other = bytearray(question["secagg"]["update"].data)
    other[-1] ^= 1 << (other[-1].bit_length() - 1)
    offer = question["secagg"]["offer"].data
    lie = {"secagg": instruction_record(Instruction(offer, bytes(other)))}
    assert given.refusal(node, lie) is ErrorCode.EQUIVOCATION
    assert given.refusal(node, question) is ErrorCode.EQUIVOCATION


@pytest.mark.parametrize("how", ["emptied", "copied"])
def test_an_emptied_or_copied_state_is_rejected(how, exact_deployment, exact, home):
    given, node = exact_deployment, exact_deployment.nodes[1]
    given.update_of = lambda _: np.ones(DIMENSION)
    losing(given.grid, "answer", given.nodes)
    given.start(exact)
    given.grid.is_lost = lambda _: False
    given.open_clients.close()
    state = home / f"node-{node}" / "state"
    shutil.copytree(state, home / "earlier")
    question = last_with(given, node, "answer")
    assert not given.ask(node, question).has_error()
    given.open_clients.close()
    shutil.rmtree(state)
    if how == "copied":
        shutil.copytree(home / "earlier", state)
    else:
        state.mkdir()
    for stage in ("answer", "advert", "update"):
        code = given.refusal(node, last_with(given, node, stage))
        assert code is ErrorCode.RESTORED_STATE


def test_a_different_model_is_rejected_before_the_app_runs(exact_deployment, exact):
    given = exact_deployment
    losing(given.grid, "update", given.nodes)
    given.start(exact)
    given.grid.is_lost = lambda _: False
    changes = {
        "another schema": ({"arrays": model(dimension=DIMENSION + 4)}, "BAD_CONFIG"),
        "a counter": (
            {"arrays": ArrayRecord({"n": Array(np.arange(3))})},
            "BAD_CONFIG",
        ),
        "two models": ({"more": model()}, "BAD_CONFIG"),
        "another model": ({"arrays": model(0.5)}, "PAYLOAD_MISMATCH"),
        "another task": ({"config": ConfigRecord({"lr": 9.0})}, "PAYLOAD_MISMATCH"),
    }
    for node, (records, code) in zip(given.nodes, changes.values(), strict=False):
        question = last_with(given, node, "update") | records
        assert given.refusal(node, question) is ErrorCode[code]
        question = last_with(given, node, "update")
        if code == "PAYLOAD_MISMATCH":
            assert given.refusal(node, question) is ErrorCode.CANCELLED
    node = given.nodes[5]
    question = last_with(given, node, "update")
    for kind in ("evaluate", "query"):
        assert given.refusal(node, question, kind) is ErrorCode.POLICY_VIOLATION
    assert given.refusal(node, question, "train.other") is ErrorCode.PAYLOAD_MISMATCH
    assert given.contents == []


def test_a_spent_budget_is_refused(deployment, noisy):
    secure, _ = deployment.start(noisy, rounds=3)
    assert [each.inputs for each in secure.sums] == [NODES, NODES]
    (failure,) = secure.failures
    assert failure.code is ErrorCode.ROSTER_TOO_SMALL
    assert set(secure.refused.values()) == {"POLICY_VIOLATION"}
    node = deployment.nodes[0]
    repeated = deployment.ask(node, last_with(deployment, node, "advert"))
    assert read_reply(repeated.content).messages == ()  # of a session that is over


def test_an_old_number_is_refused(exact_deployment, exact, monkeypatch):
    given = exact_deployment
    given.update_of = lambda _: np.ones(DIMENSION)
    given.start(exact)
    monkeypatch.setattr(
        "secagg.integrations.flower.grid.next_session_number", lambda _: 1
    )
    secure, _ = given.start(exact)
    assert set(secure.refused.values()) == {"REPLAYED_SESSION"}
    assert len(given.contents) == NODES


def test_a_node_with_a_new_number_keeps_its_spent_budget(deployment, noisy):
    deployment.start(noisy, rounds=2)
    grid = deployment.grid
    grid.contexts = {  # the same files, other numbers
        node + 100: type(context)(1, node + 100, context.node_config, RecordDict(), {})
        for node, context in grid.contexts.items()
    }
    secure, _ = deployment.start(noisy)
    assert not secure.sums
    assert set(secure.refused.values()) == {"POLICY_VIOLATION"}


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: 1 / 0,
        lambda _: (each for each in ()).throw(ValueError("person 17")),
        lambda _: sys.exit("person 17"),
        lambda message: Message(Error(0, "person 17"), reply_to=message),
        lambda message: Message(RecordDict({}), reply_to=message),
        lambda message: Message(
            RecordDict({"a": model(dimension=8)}), reply_to=message
        ),
        lambda message: Message(RecordDict({"a": renamed()}), reply_to=message),
        lambda message: Message(RecordDict({"a": model(np.nan)}), reply_to=message),
        lambda _: None,
    ],
    ids=[
        "raises",
        "with data",
        "exits",
        "error",
        "nothing",
        "other arrays",
        "other names",
        "nan",
        "no message",
    ],
)
def test_a_failed_training_contributes_zeros_and_reveals_nothing(
    answer, deployment, noisy, caplog
):
    deployment.answer = answer
    secure, _ = deployment.start(noisy)
    (total,) = secure.sums
    assert total.inputs == NODES
    assert secure.refused == {}
    found = float(np.sqrt(np.mean(total.values**2)))
    assert found == pytest.approx(total.standard_error, rel=0.2)
    assert abs(np.mean(total.values)) < 5 * total.standard_error / 20
    assert not any(reply.has_error() for _, reply in deployment.grid.up)
    assert "person" not in caplog.text


def test_a_rejection_sends_a_code_to_the_server_and_the_reason_to_the_node_log(
    deployment, caplog, config_in
):
    node = deployment.nodes[0]
    config_in(node, "[node]\ntasks = ['/home/ann']\n")
    code = deployment.refusal(node, {"arrays": model()})
    assert code is ErrorCode.BAD_SETTINGS
    assert "node.state_dir is missing" in caplog.text


def test_a_defect_reveals_nothing_to_the_server(deployment, monkeypatch):
    monkeypatch.setattr(
        "secagg.integrations.flower.mod.answer", lambda *_: {}["/home/ann"]
    )
    record = instruction_record(Instruction(b"x", b""))
    code = deployment.refusal(deployment.nodes[0], {"secagg": record})
    assert code is ErrorCode.INTERNAL


# --- the grid -------------------------------------------------------------------------


def pushed(nodes, *contents, kind="train"):
    return [
        Message(RecordDict(content), node, kind)
        for node, content in zip(nodes, contents, strict=False)
    ]


@pytest.mark.parametrize(
    "contents",
    [
        ({"arrays": model()}, {"arrays": model(1.0)}),
        ({"arrays": model(), "more": model()},),
        ({},),
        ({"arrays": model(), "secagg": ConfigRecord({})},),
    ],
    ids=["different", "two models", "no model", "name taken"],
)
def test_a_round_with_different_contents_per_node_is_rejected(
    contents, deployment, noisy
):
    secure = SecureGrid(deployment.grid, noisy, FedAvg())
    with pytest.raises(LocalProtocolError):
        secure.send_and_receive(pushed(deployment.nodes, *contents))
    assert deployment.grid.down == []


def test_duplicate_recipients_and_pushed_training_are_rejected(deployment, noisy):
    secure = SecureGrid(deployment.grid, noisy, FedAvg())
    content = {"arrays": model()}
    twice = pushed([deployment.nodes[0]] * 2, content, content)
    with pytest.raises(LocalProtocolError, match="twice"):
        secure.send_and_receive(twice)
    with pytest.raises(LocalProtocolError, match="in the clear"):
        secure.push_messages(twice)
    assert deployment.grid.down == []
    (number,) = secure.push_messages(pushed(deployment.nodes, content, kind="query"))
    (reply,) = secure.pull_messages([number])
    assert reply.error.reason == "POLICY_VIOLATION"
    assert secure.get_node_ids() == deployment.nodes
    assert secure.send_and_receive([]) == []


def test_a_reply_in_the_name_of_another_node_is_not_counted(
    deployment, noisy, monkeypatch
):
    inner = LoopGrid.pull_messages

    def swapped(self, ids):
        found = inner(self, ids)
        for reply in found:
            if reply.metadata.src_node_id == deployment.nodes[0]:
                reply.metadata.__dict__["_src_node_id"] = deployment.nodes[1]
        return found

    monkeypatch.setattr(LoopGrid, "pull_messages", swapped)
    secure, _ = deployment.start(noisy)
    assert secure.sums[0].inputs == NODES - 1
    assert set(secure.refused.values()) == {"UNAUTHENTICATED"}


@pytest.mark.parametrize(
    "record",
    [
        None,
        {},
        {"view": Array(np.zeros(2))},
        {str(number): Array(np.zeros(1)) for number in range(9)},
    ],
    ids=["none", "empty", "numpy", "many"],
)
def test_an_invalid_reply_excludes_only_its_node(record, deployment, noisy):
    inner, bad = deployment.grid._app, deployment.nodes[0]
    content = {} if record is None else {"secagg": ArrayRecord(record)}

    def app(message, context):
        if context.node_id == bad:
            return Message(RecordDict(content), reply_to=message)
        return inner(message, context)

    deployment.grid._app = app
    secure, _ = deployment.start(noisy)
    assert secure.sums[0].inputs == NODES - 1


def test_a_reply_without_content_or_error_excludes_only_its_node(
    deployment, noisy, monkeypatch
):
    inner = LoopGrid.pull_messages

    def emptied(self, ids):
        found = inner(self, ids)
        for reply in found:
            if reply.metadata.src_node_id == deployment.nodes[0]:
                reply.__dict__["_content"] = None
        return found

    monkeypatch.setattr(LoopGrid, "pull_messages", emptied)
    secure, _ = deployment.start(noisy)
    assert secure.sums[0].inputs == NODES - 1
    assert set(secure.refused.values()) == {"BAD_ENCODING"}


def test_the_strategys_timeout_ends_a_round_early(deployment, noisy):
    losing(deployment.grid, "update", deployment.nodes[:1])
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=NODES)
    secure = SecureGrid(deployment.grid, noisy, strategy, clock=deployment.clock.clock)
    strategy.start(secure, model(), num_rounds=1, timeout=20)
    assert deployment.clock.instant == pytest.approx(20, abs=1.1)
    assert not secure.sums or secure.sums[0].inputs == NODES - 1


def test_a_failed_session_leaves_the_model_of_the_strategy_unchanged(deployment, noisy):
    losing(deployment.grid, "shares", deployment.nodes[:3])
    secure, result = deployment.start(noisy, start=model(0.5), kind=FedAdam)
    assert not secure.sums
    assert secure.failures[0].code is ErrorCode.U2_TOO_SMALL
    assert not result.arrays
    deployment.grid.is_lost = lambda _: False
    secure, _ = deployment.start(noisy)
    assert secure.sums[0].inputs == NODES


def test_session_numbers_increase(deployment, noisy):
    secure, _ = deployment.start(noisy, rounds=2)
    first, second = (each.session_number for each in secure.sums)
    assert second > first > 1_700_000_000_000


# --- a simulation ---------------------------------------------------------------------


def test_a_simulation_opens_and_closes_one_state_per_node(
    home, noisy, open_clients, terms
):
    (home / "terms.toml").write_text(terms)
    mod = secagg_mod(simulation=home)
    given = Deployment(lambda _: {}, open_clients, mods=[mod])
    secure, _ = given.start(noisy)
    assert secure.sums[0].inputs == NODES
    made = {each.name for each in (home / "state").iterdir()}
    marks = {each.name for each in (home / "marks").iterdir()}
    assert made == {each.removesuffix(".lock") for each in marks}
    assert len(made) == NODES
    assert all(re.fullmatch(r"node-\d{20}", each) for each in made)
    assert open_clients._entries == {}
    assert not (home / "state" / "mark").exists()


def test_a_node_with_terms_rejects_an_app_of_a_simulation(
    home, config_in, noisy, open_clients, terms
):
    (home / "terms.toml").write_text(terms)
    given = Deployment(config_in, open_clients, mods=[secagg_mod(simulation=home)])
    secure, _ = given.start(noisy)
    assert set(secure.refused.values()) == {"POLICY_VIOLATION"}
    assert given.contents == []
    assert not (home / "state").exists()
