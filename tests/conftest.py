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


_SERVER = """
[server]
listen = "127.0.0.1:0"
[tls]
ca = "pki/ca.pem"
certificate = "pki/server.pem"
key = "pki/server.key"
[task]
id = "t"
[vector]
dimension = 4
[cohort]
min_clients = 3
max_clients = 3
min_survivors = 3
[noise]
mechanism = "skellam"
epsilon = 8.0
delta = 1e-5
l2_clip = 1.0
"""
_CLIENT = """
[client]
server = "127.0.0.1:1"
task = "t"
[tls]
ca = "pki/ca.pem"
certificate = "pki/client-1.pem"
key = "pki/client-1.key"
[policy]
max_epsilon = 8.0
max_delta = 1e-5
"""


@pytest.fixture(scope="session")
def settings_texts():
    """The smallest settings of either program, beside the `pki` of `secagg pki init`.

    Nobody listens where the client looks for its server.
    """
    return {"server": _SERVER, "client": _CLIENT}
