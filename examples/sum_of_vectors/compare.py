"""Compare the released sum with the true one, which is unknown in a deployment."""

import json
from pathlib import Path

import numpy as np


def main() -> None:
    """Print both sums and the size of the noise that the report announces."""
    released = np.load(Path("sums/sum-1.npy"))
    true = np.load(Path("true-sum.npy"))
    report = json.loads(Path("sums/report-1.json").read_text(encoding="utf-8"))
    np.set_printoptions(precision=2, suppress=True, linewidth=100)
    print("released:", released)
    print("true:    ", true)
    difference = float(np.sqrt(np.mean((released - true) ** 2)))
    print(f"root mean square difference: {difference:.2f}")
    privacy = report["privacy"]
    if privacy is not None:
        print(f"announced standard error:    {report['standard_error']:.2f}")
        print(f"epsilon {privacy['server']['epsilon']:.2f} against the server")


if __name__ == "__main__":
    main()
