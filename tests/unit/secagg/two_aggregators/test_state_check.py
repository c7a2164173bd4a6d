"""`secagg state check` asks for what leader and helper say lies in their spools."""

import asyncio
import json
import shutil
from contextlib import suppress

import numpy as np
import pytest
from secagg_testing.inline_store import inline_store
from secagg_testing.manual_clock import run
from secagg_testing.two_aggregators import Between, TwoAggregators, noise_for

from secagg.cli import main
from secagg.server.storage import ServerStorage
from secagg.storage.blobs import FileBlobs
from secagg.storage.spool import UploadSpool
from secagg.wire.calls import UploadChunk

VECTORS = [np.linspace(-0.3, 0.1 * k, 5) for k in range(1, 6)]
TASK = """
[task]
id = "between-two"
dimension = 5
rho = 0.5
epsilon = 8.0
delta = 1e-5
steps = 2
min_survivors = 3
max_clients = 5
"""
CALLER = 'ca = "a"\ncertificate = "b"\nkey = "c"\n'
PEER = {
    "leader": f'[helper]\nname = "helper"\naddress = "localhost:1"\n{CALLER}'
    f'receipt_key = "ed25519:{"ab" * 32}"\n',
    "helper": '[leader]\nname = "leader"\n',
}


class Places:
    """The states of both, on a disk."""

    def __init__(self, directory):
        self.directory = directory
        for name, peer in PEER.items():
            sums = 'output_dir = "sums"\n' if name == "leader" else ""
            (directory / f"{name}.toml").write_text(
                f'[server]\nname = "{name}"\nlisten = "127.0.0.1:0"\n'
                f'state_dir = "{name}"\n'
                f'rollback_mark = "{name}.mark"\n{sums}[tls]\n{CALLER}{peer}{TASK}'
            )

    def storage(self, name, clock):
        state = self.state(name)
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = inline_store(
            state / "store.sqlite3",
            mark=self.directory / f"{name}.mark.between-two",
            now=clock.date,
        )
        return ServerStorage(store, UploadSpool(FileBlobs(state / "spool")))

    def play(self, script, **options):
        """Run both until a script ends; then neither process is there any more."""

        async def main(clock):
            storages = [self.storage(name, clock) for name in PEER]
            pair = TwoAggregators(
                clock, noise_for(max_clients=5), storages=tuple(storages), **options
            )
            for party in (pair.leader, pair.helper):
                await party.recover()
            await script(pair)
            for storage in storages:
                await storage.store.close()

        run(main)

    def state(self, name):
        return self.directory / name / "tasks" / "between-two"

    def uploads(self, name):
        return sorted((self.state(name) / "spool").glob("*/uploads/*.whole"))

    def sums(self, name):
        return sorted((self.state(name) / "spool").glob("*/sum"))


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Places(tmp_path)


@pytest.fixture
def check(places, capsys):
    def checked(name):
        config = str(places.directory / f"{name}.toml")
        code = main(["state", "check", "--config", config, "--json"])
        answer = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert "faults" in answer, answer
        return code, [each["complaint"] for each in answer["faults"]]

    return checked


async def shares_of_four(pair):
    """Leave the session when four of five shares are in the leader's store."""
    summing = asyncio.ensure_future(pair.leader.next_sum())
    giving = [
        asyncio.ensure_future(pair.client(f"client-{place}").contribute(vector))
        for place, vector in enumerate(VECTORS[:4])
    ]
    await pair.clock.sleep_until(pair.clock.now() + 60)  # of 300 for shares
    for task in (summing, *giving):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def a_sum(pair):
    await pair.give(VECTORS)


async def another_session(pair):
    summing = asyncio.ensure_future(pair.leader.next_sum())
    await pair.clock.sleep_until(pair.clock.now() + 60)
    summing.cancel()
    with suppress(asyncio.CancelledError):
        await summing


def test_shares_accepted_by_a_leader_are_checked(places, check):
    places.play(shares_of_four)
    assert check("leader") == check("helper") == (0, [])
    first, *_ = places.uploads("leader")
    size = first.stat().st_size
    first.unlink()
    code, (complaint,) = check("leader")
    assert code == 77
    assert complaint.endswith(f"{size} bytes: it is gone")
    shutil.rmtree(places.state("leader") / "spool")
    code, complaints = check("leader")
    assert (code, len(complaints)) == (77, 4)
    assert check("helper") == (0, [])  # its clients' shares lie in its store


def test_a_changed_share_is_reported_as_damage(places, check):
    places.play(shares_of_four)
    first, *_ = places.uploads("leader")
    first.write_bytes(bytes(first.stat().st_size))
    code, complaints = check("leader")
    assert code == 77
    assert any("does not have its digest" in each for each in complaints)


def test_a_share_of_an_unnamed_client_is_not_checked(places, check):
    """What was lost before the clients were named is in no sum."""
    places.play(shares_of_four)
    first, *_ = places.uploads("leader")
    first.unlink()

    class Deaf(Between):
        async def call(self, request):
            if isinstance(request, UploadChunk):  # the list of those who are named
                await asyncio.Event().wait()
            return await super().call(request)

    async def closed(pair):
        summing = asyncio.ensure_future(pair.leader.next_sum())
        await pair.clock.sleep_until(pair.clock.now() + 310)
        assert len(pair.leader._live.named) == 3
        summing.cancel()
        with suppress(asyncio.CancelledError):
            await summing

    places.play(closed, helper_way=Deaf)
    assert check("leader") == (0, [])
    first, *_ = places.uploads("leader")
    first.unlink()
    assert check("leader")[0] == 77


@pytest.mark.parametrize("name", PEER)
def test_a_sum_that_may_still_be_fetched_is_checked(name, places, check):
    places.play(a_sum)
    assert check("leader") == check("helper") == (0, [])
    (stored,) = places.sums(name)
    stored.unlink()
    assert check(name) == (77, ["has a sum that its peers may fetch: it is gone"])


def test_the_next_session_ends_the_retention_of_a_helper_and_not_of_a_leader(
    places, check
):
    places.play(a_sum)
    places.play(another_session)
    assert check("leader") == check("helper") == (0, [])
    assert places.sums("helper") == []
    (stored,) = places.sums("leader")
    stored.unlink()
    assert check("leader")[0] == 77
