"""The kit's other role: its own aggregator passes, and faults in it are found."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from secagg.conformance import kit, report
from secagg.conformance.program import ProgramFailedError
from secagg.conformance.scene import scene
from secagg.conformance.server_driver import ServerDriver
from secagg.conformance.server_role import server_cases
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.packing import pack, unpack
from secagg.protocol.server import handlers, unmasking
from secagg.server import step_server
from secagg.server.step_server import StepServer

CASES = {case.id: case for case in server_cases()}


@cache  # scenes with noise are planned
def new():
    return {
        case.id
        for case in server_cases()
        if case.needs_restart or scene(case.scene).task is not None
    }


class InThisProcess:
    """An aggregator under test without a process; its state survives `restart`."""

    def __init__(self, home: Path, make=ServerDriver, change=None, patches=()):
        self._home, self._make, self._change = home, make, change
        self._patches = patches
        self._driver = make(home)

    def call(self, line):
        with ExitStack() as planted:
            for each in self._patches:
                planted.enter_context(each)
            try:
                answer = self._driver.answer(line)
            except Exception as error:  # as a process would have
                raise ProgramFailedError(f"it ended in {error!r}") from error
        return answer if self._change is None else self._change(line, answer)

    def restart(self):
        self._driver = self._make(self._home)


def abilities(**claims: Any) -> kit.Abilities:
    return kit.Abilities.of(ServerDriver.hello() | claims)


def played_by(server, cases=None, **claims):
    return [
        kit.play(case, server, abilities(**claims), seed=bytes(32))
        for case in cases or kit.chosen((1, 2), role="server")
    ]


def not_passed(verdicts):
    return [(v.case.id, v.why) for v in verdicts if v.state is not kit.State.PASSED]


def test_the_server_of_this_package_passes_every_case(home):
    """Right noise is blamed once in 10^7 runs."""
    verdicts = played_by(InThisProcess(home), restart="process")
    assert len(verdicts) == len(server_cases()) > 40
    assert not_passed(verdicts) == []


def test_a_server_restarted_in_memory_passes_every_restart_case(home):
    cases = [CASES[name] for name in RESTARTED]
    assert not_passed(played_by(InThisProcess(home), cases, restart="memory")) == []


def test_a_certificate_lists_what_was_not_claimed(home):
    """Without noise and restarts their cases are skipped by name, not passed."""
    verdicts = played_by(InThisProcess(home), restart=None, mechanisms=[])
    claims = abilities(restart=None, mechanisms=[])
    found = report.certificate(claims, verdicts, role="server", seed=1)
    assert set(found["skipped"]) == new()
    assert found["counts"] == {
        "passed": len(server_cases()) - len(new()),
        "skipped": len(new()),
    }
    text = " ".join(report.certificate_text(found))
    assert "mechanisms none; restart not claimed" in text
    assert "server-noise, " in text


# --- faults in every session ----------------------------------------------------------


def _without_refusals(_line, answer):
    return {} if "refused" in answer else answer


def _with_one_code(_line, answer):
    return {"refused": "INTERNAL"} if "refused" in answer else answer


def _of_another_session(line, answer):
    if line["do"] != "open":
        return answer
    offer = SessionDescriptor.decode(bytes.fromhex(answer["offer"]))
    return {"offer": replace(offer, session_number=2).encode().hex()}


def _with_no_sum(_line, answer):
    return {"failed": "INTERNAL"} if "packed" in answer else answer


def _with_an_update_for_all(line, answer):
    return {"update": "0900150000000178"} if line["do"] == "update_for" else answer


@pytest.mark.parametrize(
    ("fault", "least"),
    [
        (_without_refusals, 22),
        (_with_one_code, 22),
        (_of_another_session, 41),
        (_with_no_sum, 30),
        (_with_an_update_for_all, 30),
        (lambda _, __: {}, 41),
        (lambda line, _: {"refused": "X"} if line["do"] == "receive" else {}, 41),
    ],
)
def test_a_faulty_server_is_detected(home, fault, least):
    verdicts = played_by(InThisProcess(home, change=fault))
    assert sum(verdict.is_bad for verdict in verdicts) >= least


# --- faults in the noise, and after a restart -----------------------------------------


@dataclass
class Fault:
    """A fault to plant in the aggregator.

    Attributes:
        cases: Ids of cases each of which must find it.
        patches: What is patched while the aggregator acts.
        driver: Class of the aggregator's driver.
        fired: How often the fault has acted.
    """

    cases: tuple[str, ...]
    patches: list[Any] = field(default_factory=list)
    driver: type[ServerDriver] = ServerDriver
    fired: int = 0

    def act(self) -> None:
        self.fired += 1


FAULTS: dict[str, tuple[Callable[[Fault], None], tuple[str, ...]]] = {}
NOISED = ("server-noise", "server-noise-in-layers", "server-noise-of-fewer")
LAYERED = (
    "server-noise-in-layers",
    "server-noise-in-layers-taken-back-in-part",
    "server-noise-signed",
)
RESTARTED = tuple(sorted(case.id for case in server_cases() if case.needs_restart))
BETWEEN = tuple(each for each in RESTARTED if "between" in each)
EVERYWHERE = tuple(each for each in RESTARTED if "everywhere" in each)


def fault(*cases: str):
    """Register a function that plants a fault."""

    def register(plant):
        FAULTS[plant.__name__] = (plant, cases)
        return plant

    return register


def with_total(found: Fault, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Plant: the released residues, centred, are other ones."""

    class Faulty(ServerDriver):
        def total(self) -> dict[str, Any]:
            answer = super().total()
            if "packed" not in answer:
                return answer
            found.act()
            numbers = self.server.descriptor.parameters
            m = numbers.modulus
            packed = bytes.fromhex(answer["packed"])
            right = unpack(packed, numbers.dimension, numbers.bits, m)
            drawn = right.astype(np.int64)
            drawn = np.where(drawn >= (m + 1) // 2, drawn - m, drawn)
            residues = (change(drawn) % m).astype(right.dtype)
            return {"packed": pack(residues, numbers.bits).hex()}

    found.driver = Faulty


@fault(*NOISED, "server-noise-signed")
def releases_no_noise(found):
    with_total(found, lambda drawn: drawn * 0)


@fault(*NOISED)
def halves_the_noise(found):
    with_total(found, lambda drawn: drawn // 2)


@fault(*NOISED, "server-noise-in-layers-taken-back-in-part")
def adds_noise_of_its_own(found):
    with_total(found, lambda drawn: drawn + (np.arange(drawn.size) % 2))


@fault(*NOISED)
def draws_uniform_noise(found):
    def uniform(drawn):
        most = round(float(np.sqrt(3 * np.mean(drawn * drawn))))
        ranks = np.argsort(np.argsort(drawn, kind="stable"), kind="stable")
        return (ranks * (2 * most + 1)) // drawn.size - most

    with_total(found, uniform)


def subtracting(found: Fault, change: Callable[..., None]) -> None:
    """Plant: layers are taken back otherwise."""
    right = step_server.subtract_layers

    def changed(total, removal):
        if removal is None or not removal.seeds:
            return
        found.act()
        change(right, total, removal)

    found.patches.append(patch.object(step_server, "subtract_layers", changed))


@fault(*LAYERED)
def removes_no_layer(found):
    subtracting(found, lambda *_: None)


@fault(*LAYERED)
def removes_other_draws(found):
    def other(right, total, removal):
        seeds = tuple((layer, SecretBytes(bytes(32))) for layer, _ in removal.seeds)
        right(total, replace(removal, seeds=seeds))

    subtracting(found, other)


@fault("server-noise-in-layers", "server-noise-signed")
def removes_layers_of_one_client(found):
    def one(right, total, removal):
        right(total, replace(removal, seeds=removal.seeds[:1]))

    subtracting(found, one)


@fault("server-noise-of-fewer")
def uses_the_roster_instead_of_u2(found):
    right = step_server.read_noise_terms

    def changed(parameters, share_holders):
        found.fired += share_holders < parameters.max_clients
        return right(parameters, parameters.max_clients)

    found.patches.append(patch.object(step_server, "read_noise_terms", changed))


@fault(
    "server-noise-of-too-few",
    "server-restart-without-a-sum",
    "server-wrong-share-too-few-answers",
)
def releases_a_sum_of_too_few(found):
    class Faulty(ServerDriver):
        def total(self) -> dict[str, Any]:
            found.act()
            assert "failed" in super().total()
            return {"packed": ""}

    found.driver = Faulty


@fault("server-more-than-max-clients")
def accepts_one_client_too_many(found):
    right = StepServer.receive

    def changed(server, sender, message):
        try:
            return right(server, sender, message)
        except RemoteProtocolError as error:
            if error.code is not ErrorCode.ROSTER_TOO_LARGE:
                raise
            found.act()

    found.patches.append(patch.object(StepServer, "receive", changed))


def unchecked(found: Fault, where: Any, name: str) -> None:
    """Plant: a function that finds what is wrong finds nothing."""

    def nothing(*_: Any, **__: Any) -> None:
        found.act()

    found.patches.append(patch.object(where, name, nothing))


@fault("server-ring-too-few-holders", "server-ring-too-few-holders-at-the-end")
def counts_no_holders(found):
    unchecked(found, handlers, "_short_of_holders")


@fault("server-wrong-share-located")
def locates_no_wrong_share(found):
    unchecked(found, unmasking, "_corrected")


def restarting(found: Fault, forget: Callable[[list[bytes]], list[bytes]]) -> None:
    """Plant: what is found after a restart is less than what was stored."""

    class Faulty(ServerDriver):
        def restart(self) -> dict[str, Any]:
            before = self._journal.read_bytes().splitlines()
            after = forget(before)
            found.fired += after != before
            self._journal.write_bytes(b"".join(line + b"\n" for line in after))
            return super().restart()

    found.driver = Faulty


@fault(*RESTARTED)
def opens_another_session(found):
    class Faulty(ServerDriver):
        def restart(self) -> dict[str, Any]:
            found.act()
            self._server = None
            journal = self._journal.read_bytes().splitlines()
            return self.open(json.loads(journal[0]))

    found.driver = Faulty


@fault(*RESTARTED)
def forgets_that_a_round_was_closed(found):
    def forget(lines):
        return lines[:-1] if b"close_round" in lines[-1] else lines

    restarting(found, forget)


@fault(*BETWEEN, *EVERYWHERE)
def loses_the_last_message(found):
    """Lines that repeat it are gone as well."""

    def forget(lines):
        if b'"receive"' not in lines[-1]:
            return lines
        return [line for line in lines if line != lines[-1]]

    restarting(found, forget)


@fault("server-restart-everywhere-ring")
def reorders_the_ring(found):
    class Faulty(ServerDriver):
        def restart(self) -> dict[str, Any]:
            real = step_server.StepServer.close_round

            def other(server):
                found.act()
                server._entropy.token(32)
                real(server)

            with patch.object(StepServer, "close_round", other):
                return super().restart()

    found.driver = Faulty


@fault(*BETWEEN)
def accepts_a_second_message_after_a_restart(found):
    class Faulty(ServerDriver):
        def answer(self, line: Mapping[str, Any]) -> dict[str, Any]:
            answer = super().answer(line)
            if answer.get("refused") == ErrorCode.EQUIVOCATION.name:
                found.act()
                return {}
            return answer

    found.driver = Faulty


@fault("server-restart-between-two-uploads")
def counts_a_repeated_upload_after_a_restart(found):
    class Faulty(ServerDriver):
        def restart(self) -> dict[str, Any]:
            right = StepServer._apply_event

            def always_new(server, event):
                found.fired += not right(server, event)
                return True

            with patch.object(StepServer, "_apply_event", always_new):
                return super().restart()

    found.driver = Faulty


@fault("server-restart-everywhere-with-noise")
def removes_no_layer_after_a_restart(found):
    class Faulty(ServerDriver):
        def restart(self) -> dict[str, Any]:
            def nothing(_total, removal):
                found.fired += removal is not None and bool(removal.seeds)

            with patch.object(step_server, "subtract_layers", nothing):
                return super().restart()

    found.driver = Faulty


@fault("server-restart-without-a-sum")
def ends_otherwise_after_a_restart(found):
    class Faulty(ServerDriver):
        was_restarted = False

        def restart(self) -> dict[str, Any]:
            self.was_restarted = True
            return super().restart()

        def total(self) -> dict[str, Any]:
            found.fired += self.was_restarted
            return {"failed": "INTERNAL"} if self.was_restarted else super().total()

    found.driver = Faulty


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_reached_and_detected_by_each_of_its_cases(home, name):
    plant, cases = FAULTS[name]
    for case in cases:
        found = Fault(cases)
        plant(found)
        server = InThisProcess(home, found.driver, patches=found.patches)
        verdict = kit.play(CASES[case], server, abilities(), seed=bytes(32))
        assert found.fired, case
        assert verdict.state is kit.State.FAILED, case
        # The kit says what is wrong: the program has answered every line.
        assert "it ended in" not in verdict.why, (case, verdict.why)


def test_every_case_of_noise_and_restarts_detects_a_fault():
    assert {case for _, cases in FAULTS.values() for case in cases} >= new()


def test_a_truncated_journal_line_counts_as_not_answered(home):
    """A crash in the middle of a write loses that line, and nothing else."""
    server = InThisProcess(home)
    (case,) = [each for each in server_cases() if each.id == "server-honest"]
    assert kit.play(case, server, abilities(), seed=bytes(32)).why == ""
    total, journal = server.call({"do": "total"}), home / "session.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"do": "recei')
    server.restart()
    server.call({"do": "restart"})
    assert server.call({"do": "total"}) == total
    assert journal.read_bytes().endswith(b"}\n")
