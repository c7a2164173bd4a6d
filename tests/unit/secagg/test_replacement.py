"""R3.5-5: zeros can be encoded in every task with noise, and in no way of their own."""

import numpy as np
import pytest
from secagg_testing.cohorts import offer_of

import secagg
from secagg import advanced
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import NoisyTask, Unusable, UnusableKind, encode_or_zeros
from secagg.distributed_dp.units import unit_terms
from secagg.errors import InputError
from secagg.protocol.events import input_digest
from secagg.protocol.noise_terms import NoiseSecrets

CLIENTS, DIM = 4, 6
SESSION = b"i" * 32
SECRETS = NoiseSecrets(
    share_holders=CLIENTS,
    context=bytes(32),
    seed=SecretBytes(b"s" * 32),
    layers=tuple(SecretBytes(bytes([each] * 32)) for each in range(9)),
)
LATE = Unusable(UnusableKind.LATE, "the vector was not ready")


def planned(randomiser=None, clip=None, **more):
    fields = {
        "clients": CLIENTS,
        "min_survivors": 3,
        "dimension": DIM,
        "epsilon": 8.0,
        "delta": 1e-5,
    }
    if more.get("mechanism") != "skellam-counts":
        fields |= {"l2_clip": 1.0, "bits": 24, "ladder": 0}
    made = secagg.plan(**fields | more)
    return secagg.PreparedTask.from_plan(made, randomiser=randomiser, clip=clip).noised


def moving():
    schedule = advanced.ClippingSchedule(
        l2_clip=1.0, lowest_clip=0.25, highest_clip=4.0
    )
    asked = {
        "clients": CLIENTS,
        "dimension": DIM,
        "l2_clip": 1.0,
        "epsilon": 8.0,
        "delta": 1e-5,
        "bits": 20,
        "mechanism": "skellam",
        "accountant": "skellam-gdp",
    }
    amplitude = advanced.clip_flag_amplitude(advanced.PlanRequest(**asked))
    made = secagg.plan(**asked, clip_flag_amplitude=amplitude)
    noised = secagg.PreparedTask.from_plan(made, clip=schedule).noised
    terms = unit_terms(noised.units.highest)
    return NoisyTask.of_session(offer_of(noised.parameters, noise_terms=terms))


def randomised(name):
    dim = 1 if name == "scalar-dp" else DIM
    given = {"randomiser": name, "dim": dim, "bound": 2.0, "epsilon": 30.0}
    if name == "separated":
        given["magnitude_epsilon"] = 8.0
    chosen = advanced.LocalParameters(**given)
    norm = advanced.make_randomiser(chosen).output_norm
    return planned(
        chosen,
        dimension=dim,
        l2_clip=norm,
        epsilon=60.0,
        mechanism="skellam",
        accountant="skellam-gdp",
    )


TASKS = {
    "skellam": lambda: planned(mechanism="skellam"),
    "skellam-mixture": lambda: planned(mechanism="skellam-mixture"),
    "ddgauss": lambda: planned(mechanism="ddgauss"),
    "binomial": lambda: planned(mechanism="binomial"),
    "layers": lambda: planned(mechanism="skellam", ladder=2),
    "selected": lambda: planned(mechanism="skellam", selection_rate=0.5),
    "whole numbers": lambda: planned(mechanism="skellam-counts", max_nonzero=1),
    "moving clip": moving,
    **{
        name: lambda name=name: randomised(name)
        for name in ("privunit2", "privunit-inf", "scalar-dp", "separated")
    },
}


def encode(task, given, bound=b""):
    return encode_or_zeros(
        task, given, session_id=SESSION, secrets=SECRETS, bound=bound
    )


@pytest.mark.parametrize("name", TASKS)
def test_a_replacement_equals_the_encoding_of_a_zero_vector(name):
    task = TASKS[name]()
    zeros = task.encode(np.zeros(task.dim), session_id=SESSION, secrets=SECRETS)
    for bad in (LATE, np.full(task.dim, np.nan), np.zeros(task.dim + 1), None):
        given = encode(task, bad)
        assert given.replaced is not None
        np.testing.assert_array_equal(
            given.encoded.vector.residues, zeros.vector.residues
        )
    good = np.eye(task.dim)[0]
    given = encode(task, good)
    assert given.replaced is None
    # A task that checks a vector before it is joined encodes it afterwards.
    task.check_vector(good)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("whole numbers", np.full(DIM, 0.5)),
        ("moving clip", np.full(DIM, -np.inf)),
        ("privunit2", np.full(DIM, np.inf)),
    ],
)
def test_an_unencodable_vector_is_rejected_before_a_client_joins(name, bad):
    task = TASKS[name]()
    with pytest.raises(InputError):
        task.check_vector(bad)
    assert encode(task, bad).replaced.kind is UnusableKind.INVALID


def test_a_defect_on_one_vector_does_not_exclude_the_client(monkeypatch):
    task, honest = TASKS["skellam"](), NoisyTask.encode

    def failing(task, vector, **more):
        if np.any(vector):
            raise FloatingPointError("4711 is too large")
        return honest(task, vector, **more)

    monkeypatch.setattr(NoisyTask, "encode", failing)
    given = encode(task, np.ones(DIM))
    assert given.replaced.reason == "encoding it ended in FloatingPointError"


def test_a_defect_on_all_vectors_is_raised(monkeypatch):
    def failing(*_, **__):
        raise FloatingPointError

    monkeypatch.setattr(NoisyTask, "encode", failing)
    with pytest.raises(FloatingPointError):
        encode(TASKS["skellam"](), np.ones(DIM))


def test_the_bound_digest_decides_after_a_restart():
    """R5.3-2: an input that is not the bound one is refused by the session."""
    task, good = TASKS["skellam"](), np.ones(DIM)
    vector, zeros = encode(task, good), encode(task, LATE)
    for_vector = input_digest(vector.encoded.vector)
    for_zeros = input_digest(zeros.encoded.vector)
    assert for_vector != for_zeros
    for given, bound, kind in (
        (good, for_vector, None),
        (good, for_zeros, UnusableKind.BOUND),
        (LATE, for_zeros, UnusableKind.LATE),
    ):
        found = encode(task, given, bound)
        assert input_digest(found.encoded.vector) == bound
        assert (found.replaced and found.replaced.kind) == kind
    for given, bound in ((LATE, for_vector), (-good, for_vector), (-good, b"x" * 32)):
        found = encode(task, given, bound)
        assert input_digest(found.encoded.vector) != bound
        assert found.replaced is None  # nothing was given
