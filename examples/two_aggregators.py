"""Ten people and two aggregators, neither of which sees a vector.

The leader and the helper stand for two organisations: each has an authority, a store
and a port of its own. All calls go over TLS, here on one machine.
"""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np

import secagg
from secagg import advanced, two_aggregators
from secagg.server.storage import ServerStorage
from secagg.server.storage import open_storage as open_server_storage

TASK, PEOPLE, ANY_PORT = "between-two", 10, advanced.Address("127.0.0.1", 0)


class Organisation:
    """One of two: issues certificates for its own aggregator and for its callers."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self._directory = directory / name
        self._directory.mkdir()
        self._authority = advanced.CertificateAuthority.create(f"{name}.example")
        self._authority.issued().write(self._directory, "ca")

    def server(self) -> secagg.TLSIdentity:
        """Return the aggregator's certificate."""
        issued = self._authority.issue_server(self.name, ["127.0.0.1"])
        return self._written(issued, self.name, advanced.Role.SERVER)

    def caller(self, name: str) -> secagg.TLSIdentity:
        """Return a certificate for a person, or for the other aggregator."""
        issued = self._authority.issue_client(name)
        return self._written(issued, f"for-{name}", advanced.Role.CLIENT)

    def _written(
        self, issued: advanced.IssuedCertificate, stem: str, role: advanced.Role
    ) -> secagg.TLSIdentity:
        certificate, key = issued.write(self._directory, stem)
        return secagg.TLSIdentity.load(
            certificate=certificate,
            private_key=key,
            authority=self._directory / "ca.pem",
            role=role,
        )


async def main(directory: Path) -> None:
    """Release one sum of ten vectors."""
    # Both operators and all people settle this beforehand: noise of one aggregator,
    # sixteen bits of fixed point, rho per sum, and who may be summed with whom.
    noise = two_aggregators.AggregatorNoise.joined(
        two_aggregators.fixed_point_parameters(
            dim=4,
            fixed_point_bits=16,
            rho=2.0,
            clients=PEOPLE,
            min_survivors=PEOPLE - 2,
            aggregators=2,
        ),
        two_aggregators.cohort_parameters(
            min_survivors=PEOPLE - 2, max_clients=PEOPLE, collect_seconds=30
        ),
        epsilon=5.0,
        delta=1e-5,
    )
    for line in noise.report().lines():
        print(line)
    first, second = (Organisation(directory, name) for name in ("leader", "helper"))
    async with AsyncExitStack() as stack:

        async def storage(organisation: Organisation) -> ServerStorage:
            place = directory / organisation.name
            opened = await open_server_storage(
                place / "state", mark=directory / f"{organisation.name}.mark"
            )
            stack.push_async_callback(opened.close)
            return opened

        keys = {
            each.name: two_aggregators.receipt_key_in(directory / each.name)
            for each in (first, second)
        }
        helper = two_aggregators.Helper(
            TASK,
            noise,
            name="helper",
            leader="leader",
            storage=await storage(second),
            receipt_key=keys["helper"],
        )
        helping = await stack.enter_async_context(
            two_aggregators.PartyServer([helper], ANY_PORT, second.server())
        )
        helper_address = await helping.listen()
        way = await stack.enter_async_context(
            advanced.GrpcConnection(
                helper_address, identity=second.caller("leader"), aggregator="helper"
            )
        )
        leader = two_aggregators.Leader(
            TASK,
            noise,
            name="leader",
            helper=way,
            storage=await storage(first),
            receipt_key=keys["leader"],
            helper_key=keys["helper"].public_bytes,
        )
        leading = await stack.enter_async_context(
            two_aggregators.PartyServer([leader], ANY_PORT, first.server())
        )
        leader_address = await leading.listen()

        async def give(
            name: str, vector: np.ndarray
        ) -> two_aggregators.SharedContribution:
            """Act as one person: two certificates, two connections, two shares."""
            async with (
                advanced.GrpcConnection(
                    leader_address, identity=first.caller(name), aggregator="leader"
                ) as to_leader,
                advanced.GrpcConnection(
                    helper_address, identity=second.caller(name), aggregator="helper"
                ) as to_helper,
                two_aggregators.TwoAggregatorClient(
                    to_leader,
                    to_helper,
                    task=TASK,
                    leader_name="leader",
                    helper_name="helper",
                    privacy_limits=secagg.PrivacyLimits(
                        max_epsilon=5.0, max_delta=1e-5
                    ),
                    cohort=secagg.ClientPolicy(min_survivors=PEOPLE - 2),
                    leader_key=keys["leader"].public_bytes,
                    helper_key=keys["helper"].public_bytes,
                ) as client,
            ):
                return await client.contribute(vector)

        vectors = [np.full(4, place / 20) for place in range(PEOPLE)]
        people = asyncio.gather(
            *(give(f"person-{place}", each) for place, each in enumerate(vectors))
        )
        released, given = await asyncio.gather(leader.next_sum(), people)
    truth = sum(vectors)
    print(f"{released.inputs} vectors, truly {truth}, released {released.values}")
    print(f"one coordinate errs by {noise.noise_stddev:.2f}")
    same = all(np.array_equal(one.values, released.values) for one in given)
    print(f"all clients have the same sum: {same}")
    signed = two_aggregators.verify_shared_receipt(
        given[0].receipt,
        leader_key=keys["leader"].public_bytes,
        helper_key=keys["helper"].public_bytes,
    )
    print(f"both have signed a sum of {signed.survivors}, with {signed.receipt.reader}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(main(Path(place)))
