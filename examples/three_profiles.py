"""The same private sum in three threat models, each over mutual TLS with noise.

The profiles differ in what the server may do: only follow the protocol, lie to any
client, or lie to clients that each know a few other clients only.  The last one is
experimental.  Clients and aggregator are tasks of one program here, and communicate
over real connections.  In a deployment each is a program of its own.  There,
certificates and credentials come from ``secagg pki``, and the enrolment key is not
stored where the aggregator runs.
"""

import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np

import secagg
from secagg import advanced
from secagg.crypto.entropy import SystemEntropy
from secagg.pki.key_files import key_text

CLIENTS = 6
NAMES = [f"client-{number + 1}" for number in range(CLIENTS)]
# Sparse graphs add their own failure probability to the delta of the noise.
LIMITS = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1.1e-5)
GRAPHS = {
    secagg.Profile.HONEST_CURIOUS_SERVER: advanced.Graph.COMPLETE,
    secagg.Profile.MALICIOUS_SERVER: advanced.Graph.COMPLETE,
    secagg.Profile.MALICIOUS_SERVER_SPARSE: advanced.Graph.K_OUT,
}


def cohort_of(
    profile: secagg.Profile, enrolled: advanced.PublishedEnrolment
) -> secagg.Cohort:
    """Return the cohort: all clients, without tolerated losses."""
    return secagg.Cohort(
        profile=profile,
        enrolment=enrolled if profile.has_identities else None,
        min_clients=CLIENTS,
        max_clients=CLIENTS,
        min_survivors=CLIENTS,
        degree=4 if profile is secagg.Profile.MALICIOUS_SERVER_SPARSE else 0,
    )


async def give(  # noqa: PLR0913 - what a client's settings file would hold
    name: str,
    number: int,
    *,
    address: str,
    directory: Path,
    profile: secagg.Profile,
    enrolment: advanced.ClientEnrolment | None,
) -> secagg.Contribution:
    """Contribute one vector, as a client that accepts one profile and one graph."""
    async with secagg.Client(
        address,
        task=profile.label,
        privacy_limits=LIMITS,
        identity=secagg.TLSIdentity.in_directory(
            directory, name, role=advanced.Role.CLIENT
        ),
        enrolment=enrolment,
        cohort=secagg.ClientPolicy(
            profiles=frozenset({profile}),
            graphs=frozenset({GRAPHS[profile]}),
            min_clients=CLIENTS,
            min_survivors=CLIENTS,
        ),
        state_dir=directory / profile.label / name,
        rollback_mark=directory / profile.label / f"{name}.mark",
    ) as client:
        return await client.contribute(np.full(4, number / 10))


async def released(task: advanced.RunningTask) -> secagg.ReleasedSum:
    """Take the only sum of a task."""
    async for total in task.sums():
        return total
    raise RuntimeError("the task has ended without a sum")


async def main(directory: Path) -> None:
    """Release one sum in each profile."""
    advanced.CertificateAuthority.create().issue_all(
        directory, hosts=["127.0.0.1"], clients=CLIENTS
    )
    made, key = advanced.DevelopmentEnrolment.create(
        directory / "enrolment",
        trust_domain="secagg.local",
        names=NAMES,
        now=int(time.time()),
        entropy=SystemEntropy(),
    )
    async with secagg.Server(
        "127.0.0.1:0",
        identity=secagg.TLSIdentity.in_directory(
            directory, "server", role=advanced.Role.SERVER
        ),
        state_dir=directory / "server-state",
        rollback_mark=directory / "server-state.mark",
        keep_seconds=5.0,
    ) as server:
        for profile in GRAPHS:
            cohort = cohort_of(
                profile, advanced.PublishedEnrolment("secagg.local", key)
            )
            noise = secagg.plan(
                clients=CLIENTS,
                dimension=4,
                l2_clip=1.0,
                epsilon=8.0,
                delta=1e-5,
                # Against a malicious server, assume that some clients help it.
                colluder_fraction=0.1 if profile.has_identities else 0.0,
            )
            task = await server.add_task(
                profile.label, secagg.PreparedTask.from_plan(noise, cohort)
            )
            releasing = asyncio.create_task(released(task))
            given = await asyncio.gather(
                *(
                    give(
                        name,
                        number,
                        address=str(server.address),
                        directory=directory,
                        profile=profile,
                        enrolment=advanced.ClientEnrolment(
                            seed=made.seed(name),
                            credential=made.credential(name),
                            enrolment_key=key_text(key),
                        )
                        if profile.has_identities
                        else None,
                    )
                    for number, name in enumerate(NAMES)
                )
            )
            total = await releasing
            agree = all(np.all(each.values == total.values) for each in given)
            print(
                f"{profile.label}: {total.inputs} vectors, about 1.5 everywhere: "
                f"{np.round(total.values, 2)}; all clients have the same sum: {agree}"
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made_here:
        asyncio.run(main(Path(made_here)))
