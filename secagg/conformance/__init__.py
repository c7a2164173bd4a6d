"""Test vectors of the wire protocol, for authors of other clients and servers.

`vectors/README.md` beside this file describes the vectors. An implementation that
shares no code with this package and follows PROTOCOL.md alone has made them; it is in
the repository under `tests/vectors/protocol`.
"""

import json
from importlib.resources import files
from typing import Any, Final

__all__ = ["VECTOR_FILES", "read_vectors"]

VECTOR_FILES: Final = (
    "accounting",
    "edge",
    "encoding",
    "encodings",
    "enrolment",
    "masks",
    "noise",
    "receipts",
    "refusals",
    "restarts",
    "secrets",
    "sessions",
)
"""Names of the files, without their ending."""


def read_vectors(name: str) -> dict[str, Any]:
    """Read one file of vectors.

    Args:
        name: One of `VECTOR_FILES`.

    Returns:
        The content, as `vectors/README.md` describes it.

    Raises:
        ValueError: No file has this name.
    """
    if name not in VECTOR_FILES:
        raise ValueError(f"no vectors {name!r}; there are: {', '.join(VECTOR_FILES)}")
    file = files(__name__) / "vectors" / f"{name}.json"
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content
