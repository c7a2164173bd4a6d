"""Every session in memory that a hostile test plays is checked when it is over."""

import pytest
from secagg_testing.observed_session import ObservedSession


@pytest.fixture(autouse=True)
def _knowledge(monkeypatch):
    """Check what the adversary of each observed session knows, aborted ones too."""
    played, begin = [], ObservedSession.__post_init__

    def remember(session):
        begin(session)
        played.append(session)

    monkeypatch.setattr(ObservedSession, "__post_init__", remember)
    yield
    for session in played:
        session.check()
