"""The kit's own driver in this process: faults can be planted in it."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from secagg_testing.carrier import memory_directory

from secagg.conformance import kit
from secagg.conformance.driver import Driver
from secagg.conformance.program import ProgramFailedError

sys.path.append(str(Path(__file__).parent))  # of planted_faults


class InProcess:
    """A program under test without a process; faults are there while it acts."""

    def __init__(self, home: Path, make: type[Driver] = Driver, patches=()) -> None:
        self.driver = make(home)
        self._home = home
        self._patches = patches

    def call(self, line):
        with ExitStack() as planted:
            for patch in self._patches:
                planted.enter_context(patch)
            try:
                return self.driver.answer(line)
            except Exception as error:  # as a process would have
                raise ProgramFailedError(f"it ended in {error!r}") from error

    def restart(self):
        self.driver = type(self.driver)(self._home)


@pytest.fixture
def home():
    with memory_directory() as directory:
        yield directory


@pytest.fixture
def play(home):
    """Return a function that plays cases by their names' pattern, or by their rule."""

    def played(*, only="*", rule=None, chosen=slice(None), **how):
        tested = InProcess(home, **how)
        abilities = kit.Abilities.of(Driver.hello())
        return [
            kit.play(case, tested, abilities, seed=bytes(32))
            for case in kit.chosen((1, 2), only)[chosen]
            if rule is None or rule in case.rules
        ]

    return played
