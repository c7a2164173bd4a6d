"""Where the programs under test keep their rollback marks."""

import os
import shutil
import tempfile

import pytest

_HOME = pytest.StashKey[str]()


def pytest_configure(config):
    """Keep marks out of the state of whoever runs the tests, in children too."""
    config.stash[_HOME] = tempfile.mkdtemp(prefix="secagg-marks-")
    os.environ["XDG_STATE_HOME"] = config.stash[_HOME]


def pytest_unconfigure(config):
    """Leave none behind."""
    shutil.rmtree(config.stash[_HOME], ignore_errors=True)
