"""The promise of `import dpnoise`: its names, and what it does not load."""

import subprocess
import sys

import numpy as np

import dpnoise


def test_every_exported_name_exists():
    for name in dpnoise.__all__:
        assert getattr(dpnoise, name) is not None
    assert sorted(dpnoise.__all__) == dpnoise.__all__


def test_importing_loads_no_optional_dependency():
    script = (
        "import sys, dpnoise\n"
        "heavy = {'scipy', 'matplotlib', 'mpmath', 'dp_accounting', 'sklearn'}\n"
        "loaded = heavy & {name.partition('.')[0] for name in sys.modules}\n"
        "sys.exit(', '.join(loaded) or None)"
    )
    done = subprocess.run(  # our own interpreter and script
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_ten_lines_plan_encode_sum_and_decode():
    made = dpnoise.plan(
        clients=50, dimension=30, l2_clip=1.0, epsilon=4.0, delta=1e-5, bits=16
    )
    mechanism, public = dpnoise.make_mechanism(made.parameters), dpnoise.fresh_seed()
    vectors = np.eye(30)[np.arange(50) % 30]
    total = np.zeros(mechanism.encoded_dim, np.uint64)
    for vector in vectors:
        total += mechanism.encode(
            vector,
            private_seed=dpnoise.fresh_seed(),
            public_seed=public,
            session_noise=mechanism.session(50),
        ).residues
    estimate = mechanism.decode(
        total % np.uint64(mechanism.modulus), public_seed=public
    )
    errors = (estimate - vectors.sum(axis=0)) ** 2
    # The mean of 30 squared normals exceeds five times its expectation once in 10^20.
    assert errors.mean() < 5.0 * made.forecast.expected_mse
