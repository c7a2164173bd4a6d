"""What programs get wrong, and the one sentence that each mistake is answered with.

Each row is a call, the class and the code of its error, a part of the text, and a part
of the next step. `dpnoise` has no codes: there the text states what to do.
"""

import asyncio
import functools
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from secagg_testing.carrier import prepared
from secagg_testing.cohorts import parameters_for

import dpnoise
import secagg
from dpnoise import bench
from dpnoise.errors import InputError as AnswerError
from dpnoise.errors import ParameterError
from secagg import advanced, blocking
from secagg.learning import FederatedAveraging, Learner, LearningCurve, VectorSpec
from secagg.storage.directories import FileLock
from secagg.storage.sqlite import file as sqlite_file

MISUSE, SETTINGS = secagg.ErrorCode.LOCAL_MISUSE, secagg.ErrorCode.BAD_SETTINGS
INPUT = secagg.ErrorCode.BAD_INPUT
POLICY = secagg.ErrorCode.POLICY_VIOLATION
STORAGE, PORT = secagg.ErrorCode.STORAGE_FAILED, secagg.ErrorCode.PORT_IN_USE
UNREACHABLE = secagg.ErrorCode.UNREACHABLE
LOCAL, SERVICE = secagg.LocalProtocolError, secagg.ServiceError
REMOTE, VECTOR = secagg.RemoteProtocolError, secagg.InputError

GOOD = [0.5] * 4
LIMITS = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-6)
STRICT = secagg.PrivacyLimits(max_epsilon=1.0, max_delta=1e-6)
COHORT = {"min_clients": 3, "max_clients": 3, "min_survivors": 3}
ASKED = {
    "clients": 3,
    "dimension": 4,
    "l2_clip": 2.0,
    "epsilon": 8.0,
    "delta": 1e-6,
    "steps": 4,
    "mechanism": "skellam",
    "bits": 24,
    "scale_factor": 1000.0,
}


@dataclass(frozen=True)
class World:
    """What wrong uses are tried on: a plan, open clients, and a directory.

    The clients of `exact` are of a task without noise.
    """

    plan: secagg.Plan
    people: blocking.BlockingCohort
    exact: blocking.BlockingCohort
    home: Path


@functools.cache
def exact_task():
    return prepared(parameters_for(3, dimension=2, threshold=3))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    plan = secagg.plan(**ASKED)
    waiver = secagg.ExactSumWaiver(advanced.NO_NOISE_ACKNOWLEDGEMENT)
    with (
        pytest.MonkeyPatch.context() as patched,
        blocking.local(plan, clients=3, privacy_limits=LIMITS) as people,
        blocking.local(exact_task(), privacy_limits=waiver, steps=40) as exact,
    ):
        # A directory that another object keeps is not waited for.
        patched.setattr(FileLock, "acquire_within", lambda lock, _: lock.acquire())
        patched.setattr(sqlite_file, "LOCK_TIMEOUT_SECONDS", 0.0)
        yield World(plan, people, exact, tmp_path_factory.mktemp("wrong-uses"))
        people.sum([GOOD] * 3)  # no mistake has used up a session, or stopped a client


def plan(**changes):
    return lambda _: secagg.plan(**(ASKED | changes))


def limits(**changes):
    given = {"max_epsilon": 1.0, "max_delta": 1e-6} | changes
    return lambda _: secagg.PrivacyLimits(**given)


def total(**changes):
    given = {"data": "scores", "epsilon": 1.0, "delta": 1e-6} | changes
    return lambda _: advanced.TotalBudget(**given)


def policy(**given):
    return lambda _: secagg.ClientPolicy(**given)


def cohort(**changes):
    return lambda _: secagg.Cohort(**(COHORT | changes))


def joined(**changes):
    given = COHORT | changes
    return lambda world: secagg.PreparedTask.from_plan(
        world.plan, secagg.Cohort(**given)
    )


def local(**changes):
    def open_it(world):
        given = {"prepared": world.plan, "clients": 3, "privacy_limits": LIMITS}
        with blocking.local(**(given | changes)) as people:
            people.sum([GOOD] * 3)

    return open_it


def summed(vectors):
    def ask(world):
        given = vectors() if callable(vectors) else vectors
        return world.people.sum(given)

    return ask


def task(task_id, **changes):
    def add(world):
        async def main():
            async with secagg.Server(None) as server:
                given = {"prepared": world.plan} | changes
                await server.add_task(task_id, **given)

        asyncio.run(main())

    return add


def client(vector=GOOD, *, name="ann", **changes):
    def contribute(world):
        async def main():
            async with secagg.Server(None) as server:
                await server.add_task("sums", world.plan)
                given = {"task": "sums", "privacy_limits": LIMITS} | changes
                connection = server.connection(name)
                async with secagg.Client(connection, **given) as one:
                    await one.contribute(vector)

        asyncio.run(main())

    return contribute


def networked(server, **changes):
    given = {"task": "sums", "privacy_limits": LIMITS} | changes
    return lambda _: secagg.Client(server, **given)


def step(call=lambda client, offer: client.step(offer), name="ann", **changes):
    def take(world):
        server = secagg.StepServer(
            world.plan, aggregator="hub", task_id="sums", session_number=1
        )
        given = {"aggregator": "hub", "tasks": ["sums"], "privacy_limits": LIMITS}
        with secagg.StepClient(name, **({"state_dir": None} | given | changes)) as one:
            call(one, server.offer)

    return take


class Unreadable:
    """An object whose own code fails, whatever it is asked for."""

    def __getattr__(self, name):
        raise RuntimeError(name)


def step_exact(vector):
    """Contribute a vector to a session without noise."""

    def take(_):
        waiver = secagg.ExactSumWaiver(NO_NOISE)
        clients = [
            secagg.StepClient(
                name, aggregator="hub", privacy_limits=waiver, state_dir=None
            )
            for name in ("ann", "bob", "cleo")
        ]
        server = secagg.StepServer(
            exact_task(), aggregator="hub", task_id="sums", session_number=1
        )
        with clients[0], clients[1], clients[2]:
            for _ in range(2):
                for name, one in zip(("ann", "bob", "cleo"), clients, strict=True):
                    update = server.update_for(name) or b""
                    for message in one.step(server.offer, update).messages:
                        server.receive(name, message)
                server.close_round()
            clients[0].step(server.offer, server.update_for("ann"))
            try:
                clients[0].step(server.offer, vector=vector)
            finally:  # the session continues
                assert clients[0].step(server.offer, vector=[1, 2]).messages

    return take


def step_server(**changes):
    given = {"aggregator": "hub", "task_id": "sums", "session_number": 1} | changes
    return lambda world: secagg.StepServer(given.pop("task", world.plan), **given)


def addressless(**given):
    return lambda _: secagg.Server(None, **given)


def step_server_closed(world):
    server = step_server()(world)
    server.abort(secagg.ErrorCode.DEADLINE, "enough")
    server.close_round()


def compare(**changes):
    given = {
        "mechanisms": ["skellam"],
        "epsilons": [1.0],
        "clients": 20,
        "dimension": 64,
        "delta": 1e-5,
        "repeats": 3,
        "seed": bytes(32),
    }
    return lambda _: bench.compare(**(given | changes))


def averaging(call=lambda _: None, model=GOOD, **changes):
    return lambda _: call(FederatedAveraging(np.array(model), **changes))


def trained(call, **changes):
    """Call something of a model, which is planned like `ASKED`."""
    asked = {key: given for key, given in ASKED.items() if key != "dimension"}
    return averaging(lambda fed: fed.plan(**(asked | call)), **changes)


def trained_steps(world, steps):
    FederatedAveraging(np.array(GOOD)).train(world.people, [], steps=steps)


def histogram(value):
    return lambda _: dpnoise.Histogram((0, 18, 65)).encode(value)


async def unopened(world):
    async with secagg.Server(None) as server:
        await server.add_task("sums", world.plan)
        one = secagg.Client(
            server.connection("ann"), task="sums", privacy_limits=LIMITS
        )
        await one.contribute(GOOD)


async def twice(world):
    async with secagg.Server(None) as server:
        await server.add_task("sums", world.plan)
        await server.add_task("sums", world.plan)


async def end_other(world):
    async with secagg.Server(None) as server:
        await server.add_task("a", world.plan)
        await server.end_task("other", "enough")


async def late(_):
    return GOOD


def certificate(home):
    """Return a client's certificate, made once for the file."""
    if not home.exists():
        home.mkdir()
        authority = advanced.CertificateAuthority.create()
        authority.issued().write(home, "ca")
        authority.issue_client("ann").write(home, "ann")
    return secagg.TLSIdentity.in_directory(home, "ann", role=advanced.Role.CLIENT)


def called(address):
    """Contribute at an address where nothing answers."""

    def call(world):
        async def main():
            async with secagg.Client(
                address,
                task="sums",
                privacy_limits=LIMITS,
                identity=certificate(world.home / "called"),
                state_dir=world.home / "called" / "state",
                rollback_mark=world.home / "called.mark",
                wait_seconds=0.0,
            ) as one:
                await one.contribute(GOOD)

        asyncio.run(main())

    return call


def served(work):
    return lambda world: asyncio.run(work(world))


def contributing(server):
    return secagg.Client(server.connection("ann"), task="sums", privacy_limits=LIMITS)


async def after_closing(world):
    async with secagg.Server(None) as server:
        await server.add_task("sums", world.plan)
        async with contributing(server) as one:
            pass
        await one.contribute(GOOD)


async def after_the_end(world):
    async with secagg.Server(None) as server:
        await server.add_task("sums", world.plan)
        await server.end_task("sums", "enough")
        async with contributing(server) as one:
            await one.contribute(GOOD)


async def at_one_port(world):
    plaintext = {"insecure_for_tests": True}
    async with secagg.Server("127.0.0.1:0", **plaintext) as first:
        await first.add_task("a", world.plan)
        async with secagg.Server(str(first.address), **plaintext) as second:
            await second.add_task("b", world.plan)


def two_of_one_state(world):
    own = {"state_dir": world.home / "held", "rollback_mark": world.home / "held.mark"}
    step(lambda *_: step(lock_seconds=0.0, **own)(world), **own)(world)


async def two_servers_of_one_state(world):
    async with (
        secagg.Server(None, state_dir=world.home / "server"),
        secagg.Server(None, state_dir=world.home / "server"),
    ):
        pass


async def two_clients_of_one_state(world):
    async with secagg.Server(None) as server:
        await server.add_task("sums", world.plan)
        own = {"task": "sums", "privacy_limits": LIMITS, "state_dir": world.home / "c"}
        one, other = (secagg.Client(server.connection("ann"), **own) for _ in range(2))
        async with one, other:
            pass


async def of_the_server(world):
    home = world.home / "shared"
    async with secagg.Server(None, state_dir=home) as server:
        await server.add_task("sums", world.plan)
        async with secagg.Client(
            server.connection("ann"), task="sums", privacy_limits=LIMITS, state_dir=home
        ):
            pass


def two_ledgers(world):
    ledger = world.home / "ledger"
    with (
        blocking.local(world.plan, ledger=ledger),
        blocking.local(world.plan, ledger=ledger),
    ):
        pass


def interrupted(_):
    raise KeyboardInterrupt


def exact_sum(make):
    """One of three functions fails; the cohort can still be used."""

    def ask(world):
        try:
            world.exact.sum([make, lambda _: [1, 2], [1, 2]])
        finally:
            assert world.exact.sum([[1, 2]] * 3).values.tolist() == [3, 6]

    return ask


def opened(make, kind="async with"):
    def ask(world):
        if kind == "with":
            with make(world):
                pass

        async def main():
            async with make(world):
                pass

        asyncio.run(main())

    return ask


ASYNCHRONOUS = {
    "local": lambda world: secagg.local(world.plan),
    "server": lambda _: secagg.Server(None),
    "client": lambda world: secagg.Client(
        "hub:1",
        task="sums",
        privacy_limits=LIMITS,
        identity=certificate(world.home / "called"),
        state_dir=world.home / "unopened",
    ),
    "connection": lambda _: advanced.GrpcConnection(
        advanced.Address("127.0.0.1", 1), insecure_for_tests="ann"
    ),
}
BLOCKING = {
    "StepClient": lambda _: secagg.StepClient(
        "ann", aggregator="hub", privacy_limits=LIMITS, tasks=["sums"], state_dir=None
    ),
    "blocking local": lambda world: blocking.local(world.plan),
    "blocking server": lambda _: blocking.Server(None),
}


class TwoOfThree:
    """Its length is not what it holds."""

    def __len__(self):
        return 3

    def __iter__(self):
        return iter([GOOD] * 2)


class Mine:
    """A mechanism that derives from nothing."""


@dataclass(frozen=True)
class Row:
    name: str
    call: Callable[[World], object]
    kind: type[Exception]
    code: secagg.ErrorCode | None
    text: str
    way_out: str


MASKED = np.ma.masked_array(np.ones(4), mask=[0, 1, 0, 0])
OTHER = secagg.ExactSumWaiver
NO_NOISE = advanced.NO_NOISE_ACKNOWLEDGEMENT
AGES, QUANTILES = dpnoise.Histogram((0, 18, 65)), dpnoise.Quantiles(0, 120, 3)
PETS, VOTES = dpnoise.Choice(("cat", "dog")), dpnoise.Votes(("coffee", "tea"))
ROWS = [
    # Planning.
    ("epsilon 0", plan(epsilon=0), LOCAL, SETTINGS, "epsilon must", "above 0"),
    ("epsilon -1", plan(epsilon=-1), LOCAL, SETTINGS, "got -1", "epsilon"),
    ("epsilon NaN", plan(epsilon=np.nan), LOCAL, SETTINGS, "finite", "epsilon"),
    ("epsilon text", plan(epsilon="1"), LOCAL, SETTINGS, "got '1'", "number"),
    ("delta 1", plan(delta=1), LOCAL, SETTINGS, "between 0 and 1", "1e-06"),
    ("delta 0", plan(delta=0), LOCAL, SETTINGS, "between 0 and 1", "1e-06"),
    ("one client", plan(clients=1), LOCAL, SETTINGS, "between 2", "clients"),
    ("2.5 clients", plan(clients=2.5), LOCAL, SETTINGS, "got float", "clients"),
    ("clients text", plan(clients="3"), LOCAL, SETTINGS, "got str", "clients"),
    ("clients true", plan(clients=True), LOCAL, SETTINGS, "got bool", "clients"),
    ("no dimension", plan(dimension=0), LOCAL, SETTINGS, "got 0", "dimension"),
    ("huge", plan(dimension=1 << 31), LOCAL, SETTINGS, "dimension", "1073741824"),
    ("clip 0", plan(l2_clip=0), LOCAL, SETTINGS, "l2_clip must", "above 0"),
    ("clip None", plan(l2_clip=None), LOCAL, SETTINGS, "l2_clip", "l2_clip"),
    ("laplace", plan(mechanism="laplace"), LOCAL, SETTINGS, "one of", "mechanism"),
    ("skelam", plan(mechanism="skelam"), LOCAL, SETTINGS, "'skelam'", "mean skellam?"),
    ("rdp", plan(accountant="rdp"), LOCAL, SETTINGS, "accountant", "accountant"),
    ("gpd", plan(accountant="skellam_gpd"), LOCAL, SETTINGS, "one of", "skellam-gdp?"),
    ("rotated", plan(rotation="hadamrd"), LOCAL, SETTINGS, "rotation", "hadamard?"),
    ("adjacent", plan(adjacency="zero-out"), LOCAL, SETTINGS, "adjacency", "ZERO_OUT"),
    ("80 bits", plan(bits=80), LOCAL, SETTINGS, "bits must", "62"),
    ("1 bit", plan(bits=1), LOCAL, SETTINGS, "too small", "bits a value that works"),
    (
        *("tiny", plan(steps=10_000, epsilon=1e-6), LOCAL, SETTINGS),
        *("no grid needs less", "epsilon a value"),
    ),
    ("all lost", plan(loss_fraction=1), LOCAL, SETTINGS, "[0, 1)", "works: 0.99"),
    ("no steps", plan(steps=0), LOCAL, SETTINGS, "steps must", "1"),
    ("5 of 4", plan(participations=5), LOCAL, SETTINGS, "participations", "4"),
    ("30 left", plan(min_survivors=30), LOCAL, SETTINGS, "min_survivors", "3"),
    ("colluders", plan(colluder_fraction=None), LOCAL, SETTINGS, "a number", "Give co"),
    ("wraps", plan(max_wrap_probability=None), LOCAL, SETTINGS, "a number", "Give max"),
    ("epsilonn", plan(epsilonn=1), LOCAL, SETTINGS, "no argument", "mean epsilon?"),
    ("clip=", plan(clip=1), LOCAL, SETTINGS, "no argument 'clip'", "mean l2_clip?"),
    (
        *("missing", lambda _: secagg.plan(clients=3), LOCAL, SETTINGS),
        *("needs dimension", "Give dimension"),
    ),
    (
        *("unnamed", lambda _: secagg.plan(3), LOCAL, SETTINGS),
        *("by name", "by name"),
    ),
    # Limits, waivers, totals.
    ("limit -1", limits(max_epsilon=-1), LOCAL, MISUSE, "max_epsilon", "max_epsilon"),
    ("limit NaN", limits(max_epsilon=np.nan), LOCAL, MISUSE, "finite", "max_epsilon"),
    ("no limit", limits(max_epsilon=np.inf), LOCAL, MISUSE, "finite", "max_epsilon"),
    ("limit text", limits(max_epsilon="1"), LOCAL, MISUSE, "got str", "as a float"),
    ("max_delta 2", limits(max_delta=2), LOCAL, MISUSE, "below 1", "max_delta"),
    ("epsilom", limits(max_epsilom=1), LOCAL, MISUSE, "'max_epsilom'", "max_epsilon?"),
    (
        *("empty", lambda _: secagg.PrivacyLimits(), LOCAL, MISUSE),
        *("needs max_epsilon and max_delta", "max_delta="),
    ),
    ("provn", limits(statuses={"provn"}), LOCAL, MISUSE, "'provn'", "mean proven?"),
    ("one word", limits(statuses="proven"), LOCAL, MISUSE, "several", "statuses=["),
    (
        *("noise -1", limits(min_local_noise_stddev=-1), LOCAL, MISUSE),
        *("at least 0", "min_local_noise_stddev"),
    ),
    (
        *("waived", lambda _: OTHER("yes"), LOCAL, MISUSE),
        *("one sentence and no other", "PrivacyLimits"),
    ),
    (
        *("waived 3", lambda _: OTHER(NO_NOISE, noised=3)),
        *(LOCAL, MISUSE, "class PrivacyLimits", "or None"),
    ),
    ("total -1", total(epsilon=-1), LOCAL, MISUSE, "epsilon must", "epsilon"),
    ("no name", total(data=""), LOCAL, MISUSE, "1 to 200", "one name"),
    ("name 3", total(data=3), LOCAL, MISUSE, "1 to 200", "one name"),
    # Rules of a client, and cohorts.
    (
        *("profile text", policy(profiles={"malicious-server"}), LOCAL, MISUSE),
        *("member of Profile", "Profile.MALICIOUS_SERVER?"),
    ),
    (
        *("one profile", policy(profiles=secagg.Profile.MALICIOUS_SERVER), LOCAL),
        *(MISUSE, "must be a set", "profiles={"),
    ),
    (
        *("one text", policy(profiles="malicious-server"), LOCAL, MISUSE),
        *("member of Profile", "Profile.MALICIOUS_SERVER?"),
    ),
    ("-1 clients", policy(min_clients=-1), LOCAL, MISUSE, "at least 0", "or more"),
    ("noise?", policy(require_noise=None), LOCAL, MISUSE, "class bool", "True or"),
    ("half", policy(min_clients=2.5), LOCAL, MISUSE, "integer", "as an int"),
    ("one hub", policy(aggregators="hub"), LOCAL, MISUSE, "several", "aggregators=["),
    ("min_client", policy(min_client=3), LOCAL, MISUSE, "no arg", "mean min_clients?"),
    (
        *("profile word", lambda _: secagg.Profile("malicious"), LOCAL, MISUSE),
        *("member of Profile", "Profile.MALICIOUS_SERVER?"),
    ),
    ("cohort profile", cohort(profile="honest"), LOCAL, MISUSE, "Profile", "HONEST"),
    ("atuo", cohort(degree="atuo"), LOCAL, MISUSE, "'atuo'", "mean auto?"),
    ("-3 clients", cohort(min_clients=-3), LOCAL, MISUSE, "at least 2", "or more"),
    (
        *("5 of 3", joined(min_clients=5), REMOTE, secagg.ErrorCode.BAD_CONFIG),
        *("min_clients <= max_clients", "Correct"),
    ),
    ("3.5 clients", cohort(min_clients=3.5), LOCAL, MISUSE, "integer", "int"),
    (
        *("signed by none", joined(profile=secagg.Profile.MALICIOUS_SERVER), LOCAL),
        *(MISUSE, "requires an enrolment of credentials", "enrolment="),
    ),
    # One process.
    ("dict", local(privacy_limits={"max": 8}), LOCAL, MISUSE, "limits", "PrivacyLimi"),
    ("privacy=", local(privacy=LIMITS), LOCAL, MISUSE, "no argument", "privacy_limits"),
    ("2 clients", local(clients=2), LOCAL, MISUSE, "3 to 3 clients", "as many"),
    ("'3' clients", local(clients="3"), LOCAL, MISUSE, "integer", "as an int"),
    ("no plan", local(prepared=LIMITS), LOCAL, MISUSE, "class Plan", "secagg.plan("),
    ("too strict", local(privacy_limits=STRICT), REMOTE, POLICY, "is 8, at", "Privacy"),
    ("no sums", local(steps=0), LOCAL, MISUSE, "at least 1", "steps=1"),
    ("9 sums", local(steps=9), LOCAL, MISUSE, "too few clients", "participations"),
    ("sums 'x'", local(steps="x"), LOCAL, MISUSE, "integer", "as an int"),
    ("issuer", local(enrolment=3), LOCAL, MISUSE, "InProcessEnrol", "InProcessEnrol"),
    ("its total", local(total=3), LOCAL, MISUSE, "class TotalBudget", "TotalBudget("),
    ("ledger 3", local(ledger=3), LOCAL, MISUSE, "must be a path", "pathlib.Path"),
    # Vectors.
    ("two of three", summed(TwoOfThree), LOCAL, MISUSE, "2 vectors", "one vector"),
    ("2 vectors", summed([GOOD] * 2), LOCAL, MISUSE, "2 vectors", "one vector"),
    ("4 vectors", summed([GOOD] * 4), LOCAL, MISUSE, "more vectors", "one vector"),
    ("None", summed([GOOD, GOOD, None]), LOCAL, MISUSE, "3 to 3 vectors", "as many"),
    ("no vectors", summed(None), LOCAL, MISUSE, "not a sequence", "a list"),
    ("number", summed(3), LOCAL, MISUSE, "not a sequence", "a list"),
    ("letters", summed("abc"), LOCAL, MISUSE, "not a sequence", "a list"),
    (
        *("generator", summed(lambda: (GOOD for _ in "ab")), LOCAL, MISUSE),
        *("2 vectors", "one vector"),
    ),
    (
        *("NaN", summed([GOOD, GOOD, [0, np.nan, 0, 0]]), VECTOR, INPUT),
        *("vector 3 of 3 has NaN", "Replace"),
    ),
    ("inf", summed([[np.inf] * 4] * 3), VECTOR, INPUT, "infinity", "Replace"),
    ("short", summed([GOOD[:3]] * 3), VECTOR, INPUT, "3 entries", "that length"),
    (
        "by name",
        summed({"a": GOOD, "b": GOOD, "c": GOOD}),
        VECTOR,
        INPUT,
        "text",
        "a l",
    ),
    ("empty", summed([[]] * 3), VECTOR, INPUT, "0 entries", "that length"),
    ("long", summed([np.ones(4, "g")] * 3), VECTOR, INPUT, "64 bits", "astype(float)"),
    ("matrix", summed([np.eye(2)] * 3), VECTOR, INPUT, "shape (2, 2)", "ravel()"),
    ("scalar", summed([np.float64(3)] * 3), VECTOR, INPUT, "shape ()", "ravel()"),
    ("complex", summed([[1j] * 4] * 3), VECTOR, INPUT, "complex128", "astype"),
    ("bool", summed([[True] * 4] * 3), VECTOR, INPUT, "holds bool", "astype"),
    ("texts", summed([["a"] * 4] * 3), VECTOR, INPUT, "expected numbers", "astype"),
    ("object", summed([[1, 2, 3, None]] * 3), VECTOR, INPUT, "object", "astype"),
    ("ragged", summed([[1, [2], 3, 4]] * 3), VECTOR, INPUT, "cannot be read", "flat"),
    ("masked", summed([MASKED] * 3), VECTOR, INPUT, "masked entries", "filled(0)"),
    ("2^60", summed([[1 << 60] * 4] * 3), VECTOR, INPUT, "cannot hold", "Scale"),
    ("async", summed([late] * 3), VECTOR, INPUT, "asynchronous", "without async"),
    (
        *("no session", summed([lambda: GOOD] * 3), VECTOR, INPUT),
        *("with one session", "lambda session"),
    ),
    # Functions that make vectors, where no noise hides that one is missing.
    ("leaves", exact_sum(sys.exit), LOCAL, MISUSE, "raised SystemExit", "an Exc"),
    ("Ctrl-C", exact_sum(interrupted), LOCAL, MISUSE, "raised KeyboardIn", "an Exc"),
    ("ends", exact_sum(lambda _: next(iter(()))), LOCAL, MISUSE, "StopIter", "an Exc"),
    ("nothing", exact_sum(lambda _: None), VECTOR, INPUT, "is None", "list of num"),
    ("made NaN", exact_sum(lambda _: [0, np.nan]), VECTOR, INPUT, "NaN", "Replace"),
    ("made short", exact_sum(lambda _: [1]), VECTOR, INPUT, "1 entries", "that length"),
    ("made half", exact_sum(lambda _: [0.5, 1]), VECTOR, INPUT, "whole", "round it"),
    ("yields", exact_sum(lambda _: iter((1, 2))), VECTOR, INPUT, "the vector", "list"),
    ("late vector", exact_sum(late), VECTOR, INPUT, "asynchronous", "without async"),
    (
        *("given late", exact_sum(lambda info: late([info])), VECTOR, INPUT),
        *("is a coroutine", "Await it"),
    ),
    # Opened by the other kind of `with`.
    *(
        (f"with {name}", opened(make, kind="with"), LOCAL, MISUSE, "`with`", "`async")
        for name, make in ASYNCHRONOUS.items()
    ),
    *(
        (f"async with {name}", opened(make), LOCAL, MISUSE, "`async with`", "`with`")
        for name, make in BLOCKING.items()
    ),
    # Servers.
    ("task ''", task(""), LOCAL, MISUSE, "1 to 256", "short name"),
    ("task lines", task("a\nb"), LOCAL, MISUSE, "printable", "short name"),
    ("task 3", task(3), LOCAL, MISUSE, "got int", "short name"),
    ("task of none", task("a", prepared=None), LOCAL, MISUSE, "Plan", "secagg.plan("),
    ("9 steps", task("a", steps=9), LOCAL, MISUSE, "planned for 4", "more steps"),
    ("invited", task("a", invited="ann"), LOCAL, MISUSE, "several", "invited=["),
    ("attempts", task("a", attempts=0), LOCAL, MISUSE, "at least 1", "attempts=1"),
    ("payload", task("a", payload="model"), LOCAL, MISUSE, "got str", "tobytes"),
    ("twice", lambda w: asyncio.run(twice(w)), LOCAL, MISUSE, "runs already", "name"),
    (
        "ended",
        lambda w: asyncio.run(end_other(w)),
        LOCAL,
        MISUSE,
        "no task",
        "added: a",
    ),
    ("port", served(at_one_port), SERVICE, PORT, "the port is in use", "another port"),
    ("anonymous", client(name=""), LOCAL, MISUSE, "1 to 255", "short name"),
    (
        *("no identity", lambda _: secagg.Server("127.0.0.1:0"), LOCAL, MISUSE),
        *("TLS identity", "TLSIdentity.load"),
    ),
    (
        *("no port", lambda _: secagg.Server("hub", insecure_for_tests=True), SERVICE),
        *(SETTINGS, "host:port", "127.0.0.1:7000"),
    ),
    (
        *("keep", lambda _: secagg.Server(None, keep_seconds=-1), LOCAL, MISUSE),
        *("at least 0", "keep_seconds"),
    ),
    (
        *("statedir", lambda _: secagg.Server(None, statedir="x"), LOCAL, MISUSE),
        *("no argument 'statedir'", "mean state_dir?"),
    ),
    ("blobs", addressless(blobs=3), LOCAL, MISUSE, "class str", "blobs="),
    ("health", addressless(health_listen="x:1"), LOCAL, MISUSE, "an address", "listen"),
    ("closed", step_server_closed, LOCAL, MISUSE, "no open round", "result or failure"),
    # Clients.
    (
        *("server twice", served(two_servers_of_one_state), SERVICE, STORAGE),
        *("the rollback mark", "Stop the other process"),
    ),
    ("server dir", served(of_the_server), SERVICE, STORAGE, "the rollback", "remove"),
    ("ledger twice", two_ledgers, SERVICE, STORAGE, "the rollback mark", "Stop the"),
    ("dead", called("127.0.0.1:1"), SERVICE, UNREACHABLE, "nothing answers", "address"),
    ("no host", called("no.invalid:1"), SERVICE, UNREACHABLE, "no.invalid", "address"),
    (
        *("no port of it", networked("hub", identity=object(), state_dir="x"), SERVICE),
        *(SETTINGS, "host:port", "aggregator.example:7000"),
    ),
    ("after it", served(after_closing), LOCAL, MISUSE, "not open", "context manager"),
    (
        *("at the end", served(after_the_end), SERVICE, secagg.ErrorCode.TASK_OVER),
        *("has ended", "which tasks run"),
    ),
    (
        *("client twice", served(two_clients_of_one_state), SERVICE, STORAGE),
        *("held by process", "no other program"),
    ),
    ("held", two_of_one_state, SERVICE, STORAGE, "held by process", "no other program"),
    (
        *("limitless", lambda _: secagg.Client("hub:1", task="sums"), LOCAL, MISUSE),
        *("limits of privacy", "PrivacyLimits("),
    ),
    ("no certificate", networked("hub:1"), LOCAL, MISUSE, "identity", "TLSIdentity"),
    (
        *("URL", networked("https://hub:1", identity=object(), state_dir="x"), SERVICE),
        *(SETTINGS, "host:port", "127.0.0.1:7000"),
    ),
    ("client limits", client(privacy_limits=None), LOCAL, MISUSE, "limits", "Privacy"),
    ("client task", client(task=""), LOCAL, MISUSE, "1 to 256", "short name"),
    (
        *("other task", client(task="other"), SERVICE),
        *(secagg.ErrorCode.UNKNOWN_SESSION, "no such task", "which tasks run"),
    ),
    ("no attempt", client(attempts=0), LOCAL, MISUSE, "at least 1", "attempts=1"),
    ("wait", client(wait_seconds=-1), LOCAL, MISUSE, "at least 0", "wait_sec"),
    ("answer_at", client(answer_at=7), LOCAL, MISUSE, "part of a round", "0.7"),
    (
        *("cohort", client(cohort=secagg.Cohort(**COHORT)), LOCAL, MISUSE),
        *("class ClientPolicy, got Cohort", "ClientPolicy("),
    ),
    ("enrolment", client(enrolment="x"), LOCAL, MISUSE, "ClientEnrol", "ClientEnrol"),
    ("server 3", networked(3), LOCAL, MISUSE, "neither an address", "Give an address"),
    ("shown", client(on_progress=3), LOCAL, MISUSE, "a function", "a function"),
    ("threads", client(threads=4), LOCAL, MISUSE, "class Executor", "Executor("),
    ("receipts", client(retention=30), LOCAL, MISUSE, "Retention", "Retention("),
    ("when", client(answer_at="late"), LOCAL, MISUSE, "a number", "as a float"),
    ("fetch", client(fetch_sum="no"), LOCAL, MISUSE, "class bool", "True or False"),
    ("total 3", client(total=3), LOCAL, MISUSE, "class TotalBudget", "TotalBudget("),
    ("client dim", client([1.0] * 5), VECTOR, INPUT, "5 entries", "that length"),
    ("client NaN", client([np.nan] * 4), VECTOR, INPUT, "entry 0", "Replace"),
    ("client None", client(None), VECTOR, INPUT, "is None", "list of numbers"),
    ("client async", client(late), VECTOR, INPUT, "asynchronous", "without async"),
    ("client limit", client(privacy_limits=STRICT), REMOTE, POLICY, "is 8", "Privacy"),
    ("unopened", lambda w: asyncio.run(unopened(w)), LOCAL, MISUSE, "not open", "cont"),
    (
        *("no key", lambda w: identity(w.home), SERVICE),
        *(secagg.ErrorCode.BAD_CERTIFICATE, "cannot read", "path"),
    ),
    (
        *("role", lambda w: identity(w.home, role="client"), LOCAL, MISUSE),
        *("member of Role", "mean Role.CLIENT?"),
    ),
    # Carriers.
    ("step ''", step(name=""), LOCAL, MISUSE, "1 to 255", "name"),
    ("step 3", step(name=3), LOCAL, MISUSE, "1 to 255", "name"),
    ("step tasks", step(tasks="sums"), LOCAL, MISUSE, "one text", "tasks=["),
    ("unbounded", step(tasks=None), LOCAL, MISUSE, "nothing bounds", "TotalBudget("),
    ("step limits", step(privacy_limits=None), LOCAL, MISUSE, "limits", "PrivacyLim"),
    ("step text", step(lambda c, _: c.step("x")), LOCAL, MISUSE, "got str", "bytes"),
    (
        *("step garbage", step(lambda c, _: c.step(b"x")), REMOTE),
        *(secagg.ErrorCode.BAD_ENCODING, "cannot be read", "as the aggregator made"),
    ),
    (
        *("other hub", step(aggregator="other"), REMOTE),
        *(secagg.ErrorCode.UNAUTHENTICATED, "a session of 'hub'", "Tell the operator"),
    ),
    ("lock", step(lock_seconds="x"), LOCAL, MISUSE, "lock_seconds", "as a float"),
    ("session -1", step_server(session_number=-1), LOCAL, MISUSE, "at least 0", "=0"),
    ("session 1.5", step_server(session_number=1.5), LOCAL, MISUSE, "integer", "as an"),
    ("hub ''", step_server(aggregator=""), LOCAL, MISUSE, "an aggregator", "short"),
    ("hash", step_server(payload_hash=b"x"), LOCAL, MISUSE, "32 bytes", "sha256"),
    ("task None", step_server(task=None), LOCAL, MISUSE, "class Plan", "secagg.plan("),
    (
        *("next", lambda _: advanced.next_session_number("x"), LOCAL, MISUSE),
        *("integer", "as an int"),
    ),
    ("hub 3", step(aggregator=3), LOCAL, MISUSE, "an aggregator", "short name"),
    ("domain", step(trust_domain=3), LOCAL, MISUSE, "trust_domain", 'trust_domain="'),
    ("kept", step(keep_upload="no"), LOCAL, MISUSE, "class bool", "True or False"),
    ("again", step(accept_restored="no"), LOCAL, MISUSE, "class bool", "True or"),
    ("clock", step(clock=3.5), LOCAL, MISUSE, "must be a function", "a function"),
    ("entropy", step(entropy=7), LOCAL, MISUSE, "methods of Entropy", "that has them"),
    ("kept 3", step(retention=3), LOCAL, MISUSE, "class Retention", "Retention("),
    ("half", step_exact([0.5, 1]), VECTOR, INPUT, "not a whole number", "round it"),
    ("large", step_exact([1 << 40, 1]), VECTOR, INPUT, "lies outside", "Scale"),
    ("three", step_exact([1, 2, 3]), VECTOR, INPUT, "3 entries", "that length"),
    ("code", step_exact(Unreadable()), VECTOR, INPUT, "cannot be read", "flat list"),
    ("now", step_server(now="today"), LOCAL, MISUSE, "must be a number", "as a float"),
    # Training.
    ("counts", averaging(model=[1, 2]), VECTOR, INPUT, "holds int64", "select="),
    ("adam", averaging(optimizer="adam"), LOCAL, MISUSE, "'adam'", "mean fedadam?"),
    ("optimiser", averaging(optimiser="x"), LOCAL, MISUSE, "no arg", "mean optimizer?"),
    ("weight 0", averaging(max_weight=0), LOCAL, MISUSE, "above 0", "max_weight"),
    ("config", averaging(config={"f": len}), LOCAL, MISUSE, "config", "JSON"),
    ("run 3", averaging(checkpoint_dir=3), LOCAL, MISUSE, "must be a path", "Path"),
    ("train clip", trained({"l2_clip": 0}), LOCAL, MISUSE, "above 0", "l2_clip"),
    ("train typo", trained({"step": 1}), LOCAL, SETTINGS, "no argument", "mean steps?"),
    (
        *("both", trained({"clip_quantile": 0.5}, max_weight=1.0), LOCAL, MISUSE),
        *("exclude each other", "Leave out one"),
    ),
    ("50 %", trained({"clip_quantile": 50}), LOCAL, MISUSE, "below 1", "clip_quantile"),
    (
        *("few follow", trained({"clip_quantile": 0.5}), LOCAL),
        *(secagg.ErrorCode.INFEASIBLE, "cannot follow", "more clients"),
    ),
    (
        *("weights of few", trained({}, max_weight=1.0), LOCAL),
        *(secagg.ErrorCode.INFEASIBLE, "hides the sum of", "Leave out max_weight"),
    ),
    ("chosen", averaging(select="w"), LOCAL, MISUSE, "a function", "a function"),
    ("rule 3", averaging(optimizer=3), LOCAL, MISUSE, "got int", "fedavg"),
    ("config 3", averaging(config="rate"), LOCAL, MISUSE, "config", "JSON"),
    (
        *("no people", averaging(lambda fed: fed.train(None, [])), LOCAL, MISUSE),
        *("BlockingCohort", "blocking.local("),
    ),
    (
        *("vectors", lambda w: averaging(lambda f: f.train(w.people, [GOOD]))(w)),
        *(LOCAL, MISUSE, "not a function", "which trains"),
    ),
    (
        *(
            "score",
            lambda w: averaging(lambda f: f.train(w.people, []), evaluate=str)(w),
        ),
        *(LOCAL, MISUSE, "not a number", "Return a float"),
    ),
    (
        "-1 steps",
        lambda w: trained_steps(w, -1),
        LOCAL,
        MISUSE,
        "at least 0",
        "steps=0",
    ),
    ("learner", lambda _: Learner(GOOD), LOCAL, MISUSE, "not a function", "one arg"),
    ("late learner", lambda _: Learner(late), LOCAL, MISUSE, "a function", "async"),
    (
        *("no steps known", lambda w: averaging(lambda f: f.train(w.people, []))(w)),
        *(LOCAL, MISUSE, "steps is not known", "steps=..."),
    ),
    (
        *(
            "no functions",
            lambda w: averaging(lambda f: f.train(w.people, [], steps=1))(w),
        ),
        *(LOCAL, MISUSE, "0 vectors were passed", "one vector for each"),
    ),
    ("two sums on", averaging(lambda f: f.payload(2)), LOCAL, MISUSE, "2 sums", "new"),
    (
        *("no score", lambda _: LearningCurve(()).plot(), LOCAL, MISUSE),
        *("no score 'score'", "evaluate="),
    ),
    (
        *("no flat", lambda _: VectorSpec.of(np.ones(2)).unflatten([1.0]), VECTOR),
        *(INPUT, "shape (1,)", "has flattened"),
    ),
    # Questions and experiments; their errors are those of dpnoise.
    (
        *("edges", lambda _: dpnoise.Histogram((120, 0)), ParameterError, None),
        *("at least two finite numbers, each above the last", ""),
    ),
    (
        *("one edge", lambda _: dpnoise.Histogram((1,)), ParameterError, None),
        *("at least two finite", ""),
    ),
    ("range", lambda _: dpnoise.Mean(1, 0), ParameterError, None, "finite ends", ""),
    (
        *("how many", lambda _: QUANTILES.decode(np.ones(14), noise_variance=1.0)),
        *(AnswerError, None, "say of how many", ""),
    ),
    (
        "exact?",
        lambda _: AGES.decode(np.ones(2)),
        AnswerError,
        None,
        "give the rel",
        "",
    ),
    (
        *("3 of 2", lambda _: AGES.decode(np.ones(3), noise_variance=1.0)),
        *(AnswerError, None, "must be 2 finite numbers", ""),
    ),
    ("vote", lambda _: VOTES.encode([1]), AnswerError, None, "2 votes are needed", ""),
    ("other", lambda _: PETS.encode("c"), AnswerError, None, "one of the options", ""),
    ("1 repeat", compare(repeats=1), ParameterError, None, "works: 2)", ""),
    ("no repeats", compare(repeats=0), ParameterError, None, "between 2 and", ""),
    ("short seed", compare(seed=b"x"), ParameterError, None, "of length 32, got 1", ""),
    ("answers", histogram(np.ones(3)), AnswerError, None, "one number at", ""),
    ("answer '34'", histogram("34"), AnswerError, None, "one number at", ""),
    ("answer NaN", histogram(np.nan), AnswerError, None, "one number at", ""),
    (
        *("options", lambda _: dpnoise.Choice("ab"), ParameterError, None),
        *("several names, not one text", ""),
    ),
    ("bench", compare(mechanisms=["laplace"]), ParameterError, None, "must be one", ""),
    ("letters", compare(mechanisms="smm"), ParameterError, None, "mechanisms=[", ""),
    ("one level", compare(epsilons=1.0), ParameterError, None, "epsilons=[", ""),
    ("seed", compare(seed=1), ParameterError, None, "bytes object of length 32", ""),
    ("setting", compare(settings={"stepz": 1}), ParameterError, None, "steps)", ""),
    ("inputs", compare(inputs="foo"), ParameterError, None, "one of sphere, same", ""),
    (
        *("own", lambda _: bench.noisy_sum(Mine(), np.eye(2), seed=bytes(32))),
        *(ParameterError, None, "derives from dpnoise.Mechanism", ""),
    ),
]


def identity(home, role=advanced.Role.CLIENT):
    return secagg.TLSIdentity.in_directory(str(home), "ann", role=role)


@pytest.mark.parametrize(
    "row", ROWS, ids=[f"{number} {row[0]}" for number, row in enumerate(ROWS, 1)]
)
def test_misuse_raises_a_one_sentence_error(world, row):
    row = Row(*row)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(row.kind) as caught:
            row.call(world)
    error = caught.value
    assert type(error) is row.kind
    text = str(error)
    assert row.text in text
    assert "\n" not in text
    assert not text.endswith(".")
    for words in ("[policy]", "settings file", " --", "secagg client"):
        assert words not in text + getattr(error, "next_step", "")
    if row.code is None:
        assert not isinstance(error, secagg.SecAggError)
        return
    assert error.code is row.code
    assert row.way_out in error.next_step
    assert error.next_step.endswith((".", "?"))


def test_no_misuse_is_listed_twice():
    names = [row[0] for row in ROWS]
    assert len({(row[0], row[4]) for row in ROWS}) == len(names) >= 60


def test_numpy_scalars_are_accepted_as_numbers(world):
    by_numpy = {
        "clients": np.int64(3),
        "dimension": np.int32(4),
        "epsilon": np.float32(8.0),
        "l2_clip": np.float64(2.0),
        "steps": np.uint8(4),
    }
    assert secagg.plan(**(ASKED | by_numpy)) == world.plan
    three = np.int64(3)
    counted = secagg.Cohort(min_clients=three, max_clients=three, min_survivors=three)
    assert type(counted.min_clients) is int
    assert counted == secagg.Cohort(**COHORT)
    limits = secagg.PrivacyLimits(max_epsilon=np.float64(8), max_delta=np.float64(1e-6))
    assert limits == LIMITS
    assert secagg.ClientPolicy(min_clients=three) == secagg.ClientPolicy()
    server = secagg.StepServer(
        world.plan, aggregator="hub", task_id="sums", session_number=three
    )
    assert server.descriptor.session_number == 3
    with blocking.local(
        world.plan, clients=three, privacy_limits=LIMITS, ledger=str(world.home / "led")
    ) as people:
        assert people.sum([GOOD] * 3).inputs == 3
