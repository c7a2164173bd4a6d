"""Compare the mechanisms on one budget: plan, encode, sum, decode, measure.

Run it with no arguments. It plans every mechanism for the same (ε, δ), encodes a
thousand clients, adds the residues as a secure aggregation would, decodes the sum, and
prints the measured error beside the forecast and beside the central Gaussian's.
"""

import numpy as np

from dpnoise.errors import DPNoiseError
from dpnoise.mechanisms import CentralMechanism, make_mechanism
from dpnoise.planning import plan
from dpnoise.samplers import fresh_seed

CLIENTS, DIMENSION = 1000, 1024
# The accountant of cpSGD rests on constants that are recalled: it must be asked for.
ACCOUNTANTS = {
    "skellam-mixture": None,
    "skellam": None,
    "smm": None,
    "ddgauss": None,
    "binomial": "cpsgd-recalled",
    "gaussian": None,
}


def measured_error(name: str) -> tuple[float, float, float, float]:
    """Return bits, measured, forecast and central Gaussian error per coordinate."""
    made = plan(
        mechanism=name,
        accountant=ACCOUNTANTS[name],
        clients=CLIENTS,
        dimension=DIMENSION,
        l2_clip=1.0,
        epsilon=1.0,
        delta=1e-5,
        sum_l2_norm=CLIENTS**0.5,  # the vectors below are nearly orthogonal
    )
    mechanism, public = make_mechanism(made.parameters), fresh_seed()
    words = np.frombuffer(b"".join(fresh_seed() for _ in range(64 * CLIENTS)), "<u2")
    vectors = (words.astype(np.float64) - 32767.5).reshape(CLIENTS, DIMENSION)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    total = np.zeros(mechanism.encoded_dim, np.uint64)
    for vector in vectors:
        total += mechanism.encode(
            vector,
            private_seed=fresh_seed(),
            public_seed=public,
            session_noise=mechanism.session(CLIENTS),
        ).residues
        total %= np.uint64(mechanism.modulus)
    if isinstance(mechanism, CentralMechanism):
        total = mechanism.add_noise(total, private_seed=fresh_seed()).astype(np.uint64)
    estimate = mechanism.decode(total, public_seed=public)
    error = float(np.mean((estimate - vectors.sum(axis=0)) ** 2))
    return made.parameters.bits, error, made.forecast.expected_mse, made.gaussian_mse


def main() -> None:
    """Print one line per mechanism."""
    print(
        f"{'mechanism':16} {'bits':>4} {'measured':>9} {'forecast':>9} {'Gaussian':>9}"
    )
    for name in ACCOUNTANTS:
        try:
            bits, measured, forecast, gaussian = measured_error(name)
        except DPNoiseError as refusal:
            print(f"{name:16} refused: {refusal}")
            continue
        print(f"{name:16} {bits:4} {measured:9.3f} {forecast:9.3f} {gaussian:9.3f}")


if __name__ == "__main__":
    main()
