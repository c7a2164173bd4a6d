"""Write one small vector per client, and their true sum for comparison."""

from pathlib import Path
from typing import Final

import numpy as np

CLIENTS: Final = 3
DIMENSION: Final = 16


def main() -> None:
    """Write x-1.npy, x-2.npy, ... and true-sum.npy into the current directory."""
    positions = np.arange(DIMENSION)
    vectors = [
        2.0 * np.cos(2 * np.pi * positions * client / DIMENSION)
        for client in range(1, CLIENTS + 1)
    ]
    for client, vector in enumerate(vectors, start=1):
        np.save(Path(f"x-{client}.npy"), vector)
        # Whole numbers for the variant without noise (server.exact.toml).
        np.save(Path(f"n-{client}.npy"), np.round(vector + 2).astype(np.int64))
    np.save(Path("true-sum.npy"), np.sum(vectors, axis=0))
    print(f"wrote {CLIENTS} vectors of {DIMENSION} numbers and their true sum")


if __name__ == "__main__":
    main()
