"""The kit against `secagg client`: real processes, with files, TLS and a real store."""

import re
from pathlib import Path

import pytest
from client_command import ClientCommand

from secagg.conformance import kit, report
from secagg.conformance.program import ProgramFailedError

FAILING = Path(__file__).with_name("client_command_failing.txt")
FEW = (
    "honest-signed-by-a-list",
    "roster-as-a-neighbourhood",
    "restart-with-another-vector",
)
PARTS = 24  # so that each ends in time


class Behind:
    """The command behind the kit's lines, without a process for the driver."""

    def __init__(self, home, *, over_edge):
        self.command = ClientCommand(home, over_edge=over_edge)

    def call(self, line):
        try:
            return self.command.answer(line)
        except Exception as error:  # as a process would have
            raise ProgramFailedError(f"it ended in {error!r}") from error

    def restart(self):
        """Do nothing: the command ends with its case."""


@pytest.fixture(params=["gRPC", "HTTP edge"])
def bad(tmp_path, request):
    """Return a function that plays cases and returns those that went wrong."""
    over_edge = request.param == "HTTP edge"
    if over_edge:
        pytest.importorskip("uvicorn", reason="needs the extra edge")
        pytest.importorskip("httptools", reason="needs the extra edge")
    tested = Behind(tmp_path, over_edge=over_edge)
    abilities, known = (
        kit.Abilities.of(tested.command.hello()),
        report.known_failing(FAILING),
    )

    def played(cases):
        verdicts = [
            report.with_known(kit.play(case, tested, abilities, seed=bytes(32)), known)
            for case in cases
        ]
        assert kit.State.SKIPPED not in {each.state for each in verdicts}
        return [(each.case.id, each.why) for each in verdicts if each.is_bad]

    yield played
    tested.command.close()


@pytest.mark.parametrize(
    ("bad", "few"), [("gRPC", FEW), ("HTTP edge", FEW[:1])], indirect=["bad"]
)
def test_the_client_command_passes_a_few_cases(bad, few):
    cases = [case for case in kit.cases() if case.id in few]
    assert len(cases) == len(few)
    assert bad(cases) == []


@pytest.mark.parametrize("part", range(PARTS))
def test_the_command_passes_every_case(bad, part):
    """All but those with a reason, which must fail."""
    assert bad(kit.cases()[part::PARTS]) == []


def test_every_failure_has_its_reason():
    rows = FAILING.read_text(encoding="utf-8").splitlines()[1:]
    assert all(re.fullmatch(r"[a-z-]+  # .{10,}", row) for row in rows)
