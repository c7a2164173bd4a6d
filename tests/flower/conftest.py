"""Tests that need Flower: `make flower` runs them in an environment of its own.

Flower pins older versions of what the default suite uses, so both never share one.
"""

import logging
import warnings
from importlib import import_module
from importlib.util import find_spec

import pytest
from secagg_testing.carrier import memory_directory

collect_ignore_glob = ["test_*.py"]
if find_spec("flwr") is not None:
    collect_ignore_glob = []
    with warnings.catch_warnings():  # of libraries, when they are imported
        warnings.simplefilter("ignore")
        for each in ("flwr.clientapp", "flwr.serverapp", "flwr.simulation"):
            import_module(each)

TERMS = """
[node]
tasks = ["digits"]
state_dir = "state"
rollback_mark = "mark"
[policy]
max_epsilon = 10.0
max_delta = 1e-5
min_clients = 4
min_survivors = 4
"""


@pytest.fixture
def home():
    with memory_directory() as place:
        yield place


@pytest.fixture(autouse=True)
def quiet():
    """Flower prints a page for each round."""
    logging.getLogger("flwr").setLevel(logging.ERROR)


@pytest.fixture
def open_clients():
    """The clients that this process has open; none is left open."""
    from secagg.integrations.flower.open_clients import OPEN_CLIENTS  # noqa: PLC0415

    yield OPEN_CLIENTS
    OPEN_CLIENTS.close()


@pytest.fixture
def terms():
    """What a node accepts, as text."""
    return TERMS


@pytest.fixture
def config_in(home):
    """Return a function: the configuration of a node with a file of its own."""

    def config(node, text=TERMS):
        place = home / f"node-{node}"
        place.mkdir(exist_ok=True)
        (place / "terms.toml").write_text(text)
        return {"secagg-terms": str(place / "terms.toml")}

    return config
