"""A process that dies at any write of any call says nothing twice in two ways.

Every disk operation of the product that lasts is a crash point: the process dies right
before it, or right after it.  The next process resumes over the same directory, with a
new vector each time it is asked for one.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from secagg_testing.carrier import Carrier, memory_directory, step_client
from secagg_testing.cohorts import with_noise
from secagg_testing.crash_points import CrashSwitch, SimulatedCrashError

from secagg.client.gate import Need
from secagg.errors import RemoteProtocolError
from secagg.integrations.flower.node import Announced, answer
from secagg.protocol.messages import Upload
from secagg.storage.sqlite.file import SQLiteFile
from tests.cases import on_every_graph

NAMES = ("ann", "bob", "cleo", "dan", "emil", "fay")
VICTIM = "ann"
DIMENSION = 3
PROFILES = on_every_graph(DIMENSION)
OF_FLOWER = ("complete", "ring")  # of the one profile that it carries


@pytest.fixture
def tmp_path():
    with memory_directory() as home:
        yield home


@contextlib.contextmanager
def dying(switch):
    """Have every lasting operation of the victim's calls be a crash point."""
    with pytest.MonkeyPatch.context() as patched:

        def around(owner, name):
            real = getattr(owner, name)

            def wrapped(*words, **more):
                with switch.around(name):
                    return real(*words, **more)

            patched.setattr(owner, name, wrapped)

        around(os, "fsync")
        around(os, "replace")
        around(os, "pwrite")  # of the rollback mark, which it has synced
        around(Path, "unlink")
        around(SQLiteFile, "_count_commit")  # before the commit of a change
        around(SQLiteFile, "_write_mark")  # after it
        around(SQLiteFile, "_checkpoint")
        yield


class Victim:
    """A client whose processes die, and which remembers what has left."""

    def __init__(self, parameters, home, at):
        self.parameters, self.home = parameters, home
        self.switch = CrashSwitch(at)
        self.client = None
        self.vectors = 0
        self.deaths = 0

    def close(self):
        if self.client is not None:
            self.client.close()
            self.client = None

    def _die(self):
        """Let go of what the operating system takes from a dead process."""
        self.deaths += 1
        self.switch = CrashSwitch()
        for store in self.stores:
            store._transactions.file._release()
            store._release.close()
        self.client = None

    def call(self, offer, update):
        """Make a call until it returns, each time in a new process that may die."""
        while True:
            self.stores = []
            try:
                with dying(self.switch):
                    done = self._called(offer, update)
            except SimulatedCrashError:
                self._die()
            else:
                return done

    def _called(self, offer, update):
        if self.client is None:
            client = step_client(VICTIM, self.parameters, self.home)
            self.client = self._entered(client)
        self.stores = [self.client._client._opened.store]
        return self._stepped(offer, update)

    def _stepped(self, offer, update):
        done = self.client.step(offer, update)
        if Need.VECTOR in done.needs:
            done = self.client.step(offer, vector=self.made())
        return done

    def made(self):
        self.vectors += 1
        return np.full(DIMENSION, 100 * self.vectors)

    def _entered(self, client):
        return client.__enter__()


class Node(Victim):
    """The same, as a node of Flower: the app is called for the vector."""

    def _stepped(self, offer, update):
        announced = Announced(DIMENSION, b"", self.made)
        return answer(self.client, offer, update, announced).step


def crashed(parameters, home, at, kind=Victim):
    """Run a session whose victim dies at one point; return it and what it has said."""
    session = Carrier(parameters, NAMES[: parameters.max_clients], None)
    others = [name for name in session.names if name != VICTIM]
    victim, said, last = kind(parameters, home, at), [], None
    while not session.server.is_over:
        for name in others:
            session.deliver_update(name)
        after = None if last is None else last.round
        update = session.server.update_for(VICTIM, after=after) or b""
        last = victim.call(session.server.offer, update)
        said += last.messages
        for message in last.messages:
            session.server.receive(VICTIM, message)
        session.server.close_round()
    ended = victim.call(session.server.offer, session.server.update_for(VICTIM))
    victim.close()
    return session, victim, said, ended


@pytest.mark.parametrize("first", range(13))
@pytest.mark.parametrize(
    ("kind", "parameters"),
    [(Victim, each) for each in PROFILES.values()]
    + [(Node, PROFILES[graph]) for graph in OF_FLOWER],
    ids=[*PROFILES, *(f"flower {graph}" for graph in OF_FLOWER)],
)
def test_a_crash_at_any_write_causes_no_second_answer(
    kind, parameters, first, tmp_path
):
    _, whole, _, _ = crashed(parameters, tmp_path / "whole", None, kind)
    points = len(whole.switch.points)
    assert points > 60
    for at in range(first, points, 13):
        session, victim, said, ended = crashed(parameters, tmp_path / str(at), at, kind)
        assert victim.deaths == 1, at
        kinds = [message[0] for message in said]
        assert len(set(said)) == len(set(kinds)), at
        (upload,) = {message for message in said if message[0] == Upload.KIND}
        assert upload
        total = session.server.result.values[0]
        vector = total - sum(range(parameters.max_clients))
        assert vector in {100 * n for n in range(1, victim.vectors + 1)}, at
        assert victim.vectors <= 2
        assert ended.is_over
        assert ended.contribution.inputs == parameters.max_clients
        assert not list((tmp_path / str(at) / VICTIM).glob("*upload-*"))


SCRIPT = """
import sys
from pathlib import Path
from secagg.protocol.descriptor import SessionDescriptor
from secagg_testing.carrier import step_client
home, number = Path(sys.argv[1]), int(sys.argv[2])
offer = (home / "offer").read_bytes()
task = SessionDescriptor.decode(offer).parameters
with step_client("ann", task, home, lock_seconds=60.0) as ann:
    done = ann.step(offer, vector=[number / 10.0] * task.dimension)
(home / f"said-{number}").write_bytes(done.messages[-1])
"""
NOISY = with_noise(PROFILES["complete"])


def test_two_concurrent_processes_send_one_upload(tmp_path):
    session = Carrier(NOISY, NAMES[:4], tmp_path)
    for _ in range(2):
        for name in session.names:
            session.deliver_update(name)
        session.server.close_round()
    asked = session.client(VICTIM).step(
        session.server.offer, session.server.update_for(VICTIM)
    )
    assert asked.needs == {Need.VECTOR}
    session.close()
    (tmp_path / "offer").write_bytes(session.server.offer)
    path = os.pathsep.join(sys.path)
    both = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path), str(number)],
            env={**os.environ, "PYTHONPATH": path},
        )
        for number in (1, 2)
    ]
    assert [process.wait() for process in both] == [0, 0]
    first, second = ((tmp_path / f"said-{n}").read_bytes() for n in (1, 2))
    assert first == second
    session.server.receive(VICTIM, first)
    with pytest.raises(RemoteProtocolError):
        session.server.receive(VICTIM, first[:-1])
    with step_client(VICTIM, NOISY, tmp_path) as ann:
        assert ann.sessions_left("sums") == 0  # charged once
