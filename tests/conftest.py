"""What every test gets."""

import pytest


@pytest.fixture(autouse=True)
def _own_state_home(monkeypatch, tmp_path_factory):
    """Keep rollback marks out of the state of whoever runs the tests."""
    home = tmp_path_factory.getbasetemp() / "state-home"
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
