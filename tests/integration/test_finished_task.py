"""A server that starts for a task whose last sum it has already released."""

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
from secagg_testing.lying_connection import LyingConnection

from secagg.client.client import Client
from secagg.client.grpc_connection import GrpcConnection
from secagg.client.program import client_policy
from secagg.config import load_client_settings, load_server_settings
from secagg.config.policy import privacy_limits_of
from secagg.errors import ErrorCode, ServiceError
from secagg.pki.certificate_authority import CertificateAuthority
from secagg.server.service import Observer, plan_task, serve
from secagg.server.task.outputs import SumWriter
from secagg.transport.address import Address
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity
from secagg.wire.calls import RevealShares

EXAMPLE = Path(__file__).parents[2] / "examples" / "sum_of_vectors"


class HeldAfterReveal(LyingConnection):
    """Hears nothing after its last message until it is let go."""

    def __init__(self, connection, let_go: asyncio.Event):
        super().__init__(connection, {})
        self._let_go = let_go

    async def call(self, request):
        answer = await super().call(request)
        if isinstance(request, RevealShares):
            await self._let_go.wait()
        return answer


class Site:
    """One server and three clients on the files of one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = "127.0.0.1:0"
        self.notices: list[str] = []
        self.listening = asyncio.Event()
        authority = CertificateAuthority.create()
        authority.issued().write(directory / "pki", "ca")
        authority.issue_server("server", ["127.0.0.1"]).write(
            directory / "pki", "server"
        )
        for number in (1, 2, 3):
            authority.issue_client(f"client-{number}").write(
                directory / "pki", f"client-{number}"
            )
            np.save(directory / f"n-{number}.npy", np.full(16, 10**number))

    async def serve(self, *overrides):
        self.listening.clear()
        settings = load_server_settings(
            self.directory / "server.exact.toml",
            environment={},
            overrides=[f"server.listen={self.address}", *overrides],
        ).settings

        prepared = await plan_task(settings)
        return await serve(
            settings,
            prepared,
            on_sum=SumWriter(settings.server.output_dir, prepared).write,
            observer=Observer(
                listening=self._listens,
                progress=lambda _: None,
                nothing_to_do=self.notices.append,
            ),
        )

    def _listens(self, address):
        self.address = str(address)
        self.listening.set()

    async def take_part(self, number: int, let_go):
        settings = load_client_settings(
            self.directory / "client.toml",
            environment={},
            overrides=[
                f"client.server={self.address}",
                f"client.state_dir={self.directory}/client-{number}-state",
                f"tls.certificate={self.directory}/pki/client-{number}.pem",
                f"tls.key={self.directory}/pki/client-{number}.key",
                "policy.require_noise=false",
            ],
        ).settings
        identity = TLSIdentity.load(
            certificate=settings.tls.certificate,
            private_key=settings.tls.key,
            authority=settings.tls.ca,
            role=Role.CLIENT,
        )
        async with (
            GrpcConnection(
                Address.parse(settings.client.server), identity=identity
            ) as connection,
            Client(
                HeldAfterReveal(connection, let_go),
                task=settings.client.task,
                privacy_limits=privacy_limits_of(settings.policy),
                cohort=client_policy(settings),
                state_dir=settings.client.state_dir,
            ) as client,
        ):
            return await client.contribute(np.load(self.directory / f"n-{number}.npy"))


@pytest.fixture
def directory(tmp_path):
    for path in EXAMPLE.glob("*.toml"):
        shutil.copy(path, tmp_path)
    return tmp_path


async def test_a_server_without_further_tasks_still_serves_the_outcome(directory):
    site = Site(directory)
    let_go = asyncio.Event()
    # The first process goes as soon as the sum's receipt is on the disk.
    serving = asyncio.ensure_future(site.serve("server.keep_seconds=0"))
    await site.listening.wait()
    clients = [
        asyncio.ensure_future(site.take_part(number, let_go)) for number in (1, 2, 3)
    ]
    # A client that fails ends the test instead of leaving the server waiting.
    await asyncio.wait([serving, *clients], return_when=asyncio.FIRST_COMPLETED)
    served = serving.result()
    assert served.is_complete
    assert site.notices == []

    again = asyncio.ensure_future(site.serve())
    await site.listening.wait()
    let_go.set()
    for released in await asyncio.gather(*clients):
        np.testing.assert_array_equal(released.values, np.full(16, 1110))
    with pytest.raises(ServiceError, match="budget is spent") as caught:
        await again
    assert caught.value.code is ErrorCode.TASK_OVER
    assert "clients that missed the last one" in site.notices[0]
