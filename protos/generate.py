# ruff: noqa: INP001 - a script, not a package
"""Regenerate secagg/v1 from protos/secagg/v1; `make proto` runs it.

It runs with the pinned, old grpcio-tools of `make proto`.  Generated code refuses
runtimes older than its generator.  A new generator would exclude users whose protobuf
or grpcio is held back by another package.

Beside the code it writes the digests of the proto files.  A test compares them, and
fails if a proto was edited without regenerating.
"""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PROTOS: Final = ROOT / "protos"
OUTPUT: Final = ROOT / "secagg" / "v1"
MANIFEST: Final = OUTPUT / "protos.sha256"


def protoc(outputs: list[str], files: list[Path]) -> None:
    """Run protoc from the environment of this interpreter."""
    subprocess.run(  # noqa: S603 - arguments are ours
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}"),
            *outputs,
            *(str(path) for path in files),
        ],
        check=True,
        cwd=ROOT,
    )


def main() -> None:
    """Generate the modules, then write the manifest."""
    files = sorted(PROTOS.glob("secagg/v1/*.proto"))
    for stale in OUTPUT.glob("*_pb2*"):
        stale.unlink()
    protoc(["--python_out=.", "--pyi_out=."], files)
    # Only files with a service: the others would get an empty module each.
    protoc(["--grpc_python_out=."], [f for f in files if "service" in f.name])
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}"
        f"  {path.relative_to(ROOT).as_posix()}\n"
        for path in files
    ]
    MANIFEST.write_text("".join(lines), encoding="ascii")


if __name__ == "__main__":
    main()
