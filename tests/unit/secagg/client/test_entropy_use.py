"""Randomness comes through one door, and no more of it than is needed."""

import asyncio

import pytest
from secagg_testing import manual_clock
from secagg_testing.client_state import LastingStore, client_over
from secagg_testing.cohorts import parameters_for
from secagg_testing.deployment import TASK_ID, one_hot_input
from secagg_testing.inline_store import inline_store
from secagg_testing.scripted_entropy import RecordingEntropy, ScriptedEntropy

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.protocol.events import PlainVector
from secagg.runtime.workers import Workers
from secagg.server.aggregator import Aggregator
from secagg.server.task.definition import TaskDefinition
from secagg.simulation import identity_of
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.spool import UploadSpool
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.transport.connection import InMemoryConnection

NONCE, GRAPH_SEED = b"n" * 32, b"g" * 32


def test_a_session_draws_one_nonce_one_graph_seed_and_one_seed_per_client(monkeypatch):
    def no_other_source(*_):
        raise AssertionError("entropy was drawn around the interface")

    server_store = inline_store()
    client_stores = [LastingStore.make() for _ in range(3)]
    monkeypatch.setattr("secrets.token_bytes", no_other_source)
    monkeypatch.setattr("os.urandom", no_other_source)
    inline = InlineExecutor()
    workers = Workers(general=inline)
    server_entropy = ScriptedEntropy(NONCE, GRAPH_SEED)
    client_entropies = [
        RecordingEntropy(SeededEntropy(SecretBytes(bytes([n]) * 32), b"client"))
        for n in range(3)
    ]
    sums = []

    async def main(clock):
        aggregator = Aggregator(
            server_store,
            UploadSpool(MemoryBlobs()),
            clock=clock,
            entropy=server_entropy,
            workers=workers,
        )

        async def next_payload(_count):
            return b""

        async def on_sum(released):
            sums.append(released)

        serving = asyncio.ensure_future(
            aggregator.run_task(
                TaskDefinition(
                    task_id=TASK_ID,
                    parameters=parameters_for(3, dimension=4, threshold=2),
                ),
                next_payload=next_payload,
                on_sum=on_sum,
            )
        )
        await asyncio.sleep(0)
        runners = [
            client_over(
                identity_of(n),
                InMemoryConnection(aggregator, identity_of(n)),
                client_stores[n],
                make_input=lambda descriptor, _payload, _seed, n=n: PlainVector(
                    one_hot_input(n, descriptor.parameters)
                ),
                clock=clock,
                entropy=client_entropies[n],
            )
            for n in range(3)
        ]
        await asyncio.gather(*(runner.run_session(TASK_ID) for runner in runners))
        await serving

    manual_clock.run(main)
    assert server_entropy.unused_tokens == 0
    assert sums[0].descriptor.server_nonce == NONCE
    for entropy in client_entropies:
        assert entropy.sizes.count(32) == 1
        assert set(entropy.sizes) <= {2, 32}  # two bytes: jitter of a wait


def test_an_exhausted_entropy_script_raises_an_error():
    entropy = ScriptedEntropy(b"ab")
    with pytest.raises(LookupError):
        entropy.token(3)
    assert entropy.token(2) == b"ab"
    with pytest.raises(LookupError):
        entropy.token(2)
