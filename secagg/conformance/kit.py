"""The cases of the kit, and how one is played.

Rule 1: a case is data: a scene, the update that is lied about, the lie, and what an
        implementation must do.  What takes several sessions is a play, by its name.
Rule 2: whatever the program does, it ends its own case only.
Rule 3: who has left says nothing more: after every refusal the honest update follows,
        and must be answered without a message.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, unique
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from importlib.resources import files
from time import process_time
from typing import Any, Final

from secagg.conformance.lies import LIES, RESTART
from secagg.conformance.plays import PLAYS
from secagg.conformance.program import ProgramFailedError, Tested
from secagg.conformance.run import BrokenRuleError, ProgramAnswer, Recorder, Run
from secagg.conformance.scene import scene
from secagg.conformance.server_role import ServerCase, ServerRun, server_cases
from secagg.errors import printable
from secagg.protocol.messages import Complaint

_MAX_WHY: Final = 1000
PROTOCOL: Final = 1
"""Version of the lines between kit and program."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing that an implementation must do.

    Attributes:
        id: Its name.
        rules: Rule ids of PROTOCOL.md that it is about; the first one is its own.
        scene: Name of the task.
        at: Update that is lied about: offer, roster, delivery, survivors, quorum,
            ending; "" for an honest session.
        lie: Name of the lie and its arguments.
        play: Name of a play, in place of `at` and `lie`.
        codes: With one of these the program must leave; empty where it must not.
        ended: The program must say that the aggregator has ended it, with this code.
        complains: It must complain with this code, and continue.
        lost: From which update on peers are silent.
        spoil: Number of the message that peers spoil.
        limits: Of the program, where they differ.
        vector: "zeros" or "long"; "" for one that fits.
    """

    id: str
    rules: tuple[str, ...]
    scene: str
    at: str = ""
    lie: tuple[Any, ...] = ()
    play: str = ""
    codes: frozenset[str] = frozenset()
    ended: str = ""
    complains: str = ""
    lost: Mapping[str, str] = field(default_factory=dict)
    spoil: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    vector: str = ""

    @property
    def needs_restart(self) -> bool:
        """Whether the program has to come back from what it has stored."""
        words = {"after_restart", "restarted_then"}
        return bool(words & {str(word) for word in self.lie}) or "restart" in self.play


@unique
class State(StrEnum):
    """What became of a case."""

    PASSED = "passed"
    FAILED = "failed"
    SILENT = "timeout"
    SKIPPED = "skipped"
    KNOWN = "known-failing"
    """It failed, as the list of known failures says."""
    MENDED = "passed-but-known-failing"
    """It passed, although the list of known failures names it."""


_BAD: Final = frozenset({State.FAILED, State.SILENT, State.MENDED})


@dataclass(frozen=True)
class CaseVerdict:
    """How a program did in a case.

    Attributes:
        case: The case.
        state: What became of it.
        why: One sentence; "" where it passed.
        seconds: CPU time of the kit.
        lines: What kit and program said, in order.
    """

    case: Case | ServerCase
    state: State
    why: str = ""
    seconds: float = 0.0
    lines: tuple[tuple[str, Mapping[str, Any]], ...] = field(default=(), repr=False)

    @property
    def is_bad(self) -> bool:
        """Whether it makes the run fail."""
        return self.state in _BAD


@dataclass(frozen=True)
class Abilities:
    """What a program says that it can do."""

    name: str
    version: str
    profiles: frozenset[int]
    graphs: frozenset[str]
    mechanisms: frozenset[str]
    restart: str

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Abilities":
        """Read the answer to `hello`.

        Raises:
            ProgramFailedError: It is not of the contract.
        """
        known = {"name", "version", "profiles", "graphs", "mechanisms", "restart"}
        restart = content.get("restart") or ""
        try:
            if set(content) == known and restart in {"", "memory", "process"}:
                return cls(
                    str(content["name"])[:100],
                    str(content["version"])[:100],
                    frozenset(int(each) for each in content["profiles"]),
                    frozenset(map(str, content["graphs"])),
                    frozenset(map(str, content["mechanisms"])),
                    restart,
                )
        except (TypeError, ValueError, OverflowError):
            pass
        raise ProgramFailedError(
            f"the answer to hello has other keys or values than "
            f"{', '.join(sorted(known))}: {str(content)[:200]}"
        )

    def skip_reason(self, case: Case | ServerCase) -> str:
        """Return why a case is skipped; "" where it is played."""
        asked = scene(case.scene)
        if asked.profile not in self.profiles:
            return f"profile {asked.profile} is not claimed"
        if asked.graph not in self.graphs:
            return f"the {asked.graph} graph is not claimed"
        task = asked.task
        if task is not None:
            mechanism = str(task.mechanism.parameters.mechanism)
            if mechanism not in self.mechanisms:
                return f"the mechanism {mechanism} is not claimed"
        if case.needs_restart and not self.restart:
            return "restart is not claimed"
        return ""


def hello(tested: Tested) -> Abilities:
    """Ask a program what it can do.

    Raises:
        ProgramFailedError: It gives no answer of the contract.
    """
    return Abilities.of(tested.call({"do": "hello", "protocol": PROTOCOL}))


def _text(name: str) -> str:
    return (files("secagg.conformance") / name).read_text(encoding="utf-8")


@cache
def cases() -> tuple[Case, ...]:
    """Return all cases, in order."""
    rows = tomllib.loads(_text("cases.toml"))["case"]
    return tuple(_case(row) for row in rows)


def _case(row: Mapping[str, Any]) -> Case:
    found = dict(row)
    for key, kind in (("rules", tuple), ("lie", tuple), ("codes", frozenset)):
        if key in found:
            found[key] = kind(found[key])
    return Case(**found)


def unplayed_reasons() -> Mapping[str, str]:
    """Return why some rules have no case, by their ids."""
    found: dict[str, str] = {}
    for row in tomllib.loads(_text("not_live.toml"))["reason"]:
        found |= dict.fromkeys(row["rules"], row["why"])
    return found


def digest() -> str:
    """Return the SHA-256 of the cases, hexadecimal."""
    return sha256(_text("cases.toml").encode()).hexdigest()


def chosen(
    profiles: Iterable[int], only: str = "*", *, role: str = "client"
) -> tuple[Case | ServerCase, ...]:
    """Return the cases of a role and of some profiles whose ids match a pattern."""
    wanted = frozenset(profiles)
    of_role: tuple[Case | ServerCase, ...] = cases()
    if role == "server":
        of_role = server_cases()
    return tuple(
        case
        for case in of_role
        if scene(case.scene).profile in wanted and fnmatchcase(case.id, only)
    )


def play(
    case: Case | ServerCase, tested: Tested, abilities: Abilities, *, seed: bytes
) -> CaseVerdict:
    """Play one case.

    Args:
        case: The case.
        tested: The program.
        abilities: Its answer to `hello`.
        seed: Of the run: the same seed gives the same lines to the same program.
    """
    missing = abilities.skip_reason(case)
    if missing:
        return CaseVerdict(case, State.SKIPPED, missing)
    recorder, started = Recorder(tested), process_time()
    try:
        if isinstance(case, ServerCase):
            ServerRun(
                case, scene(case.scene), recorder, seed, restart=abilities.restart
            ).play()
        else:
            _played(case, recorder, abilities, seed)
        state, why = State.PASSED, ""
    except BrokenRuleError as error:
        state, why = State.FAILED, str(error)
    except ProgramFailedError as error:
        state, why = State.SILENT if error.is_timeout else State.FAILED, str(error)
    seconds = process_time() - started
    if state is not State.PASSED:
        tested.restart()  # a line that comes late belongs to no other case
    # What the program has said is shown to people, and on terminals.
    why = printable(why, max_bytes=_MAX_WHY)
    return CaseVerdict(case, state, why, seconds, tuple(recorder.lines))


def _played(case: Case, recorder: Recorder, abilities: Abilities, seed: bytes) -> None:
    """Play one case against the program."""

    def make(**changes: Any) -> Run:
        own: dict[str, Any] = {
            "seed": seed,
            "limits": case.limits,
            "lost": case.lost,
            "spoil": case.spoil,
            "restart": abilities.restart,
            "vector": _vector(case),
        }
        name = changes.pop("scene", case.scene)
        return Run(scene(name), recorder, **(own | changes))

    if case.play:
        PLAYS[case.play](make, case)
        return
    run = make()
    if case.at == "offer":
        _lied_offer(case, run)
        return
    run.join()
    if not case.at:
        run.finish()
        return
    _lied(case, run, run.play_until(case.at))


def _vector(case: Case) -> list[float] | None:
    dim = scene(case.scene).dim
    if case.vector == "zeros":
        return [0.0] * dim
    if case.vector == "long":
        return [40.0 / dim**0.5] * dim
    return None


def _lied_offer(case: Case, run: Run) -> None:
    name, *how = case.lie
    (offer,) = LIES[name](run, run.server.offer, *how)
    if not isinstance(offer, bytes):
        raise TypeError("an offer is bytes")
    answer = run.begin(offer)
    run.check_left(answer, case.codes)


def _lied(case: Case, run: Run, update: bytes) -> None:
    """Tell the lie, and check what the program does."""
    name, *how = case.lie
    *before, last = LIES[name](run, update, *how)
    for act in before:
        run.deliver_answer(run.restart() if act == RESTART else run.update(_bytes(act)))
    answer = run.restart() if last == RESTART else run.update(_bytes(last))
    if case.codes:
        run.check_left(answer, case.codes)
        _check_quiet(run, update)
    elif case.ended:
        if answer.ended != case.ended or answer.messages:
            raise BrokenRuleError(
                f"the session is over with {case.ended}, and the program says "
                f"{answer.in_words}"
            )
        _check_quiet(run, update)
    else:
        _check_continues(case, run, answer)


def _bytes(act: bytes | str) -> bytes:
    if isinstance(act, str):
        raise TypeError(f"no act is called {act}")
    return act


def _check_quiet(run: Run, update: bytes) -> None:
    """Check that a program that has left says nothing to the honest update."""
    answer = run.update(update)
    if run.unsent_messages(answer) or answer.view or answer.released:
        raise BrokenRuleError("the program continues after it has left")


def _check_continues(case: Case, run: Run, answer: ProgramAnswer) -> None:
    """Check that the program complains where it must, and that the sum is right."""
    found = [
        int.from_bytes(message[1:3], "big")
        for message in run.unsent_messages(answer)
        if message and message[0] == Complaint.KIND
    ]
    wanted = {"": [], "BAD_SHARE_CIPHERTEXT": [10], "SHARE_CONFUSION": [11]}[
        case.complains
    ]
    if set(found) != set(wanted):
        raise BrokenRuleError(
            f"it must complain with {wanted or 'nothing'}, and does with {found}"
        )
    run.deliver_answer(answer)
    run.finish()
