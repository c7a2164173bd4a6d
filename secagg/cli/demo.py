"""`secagg demo`: federated training on this machine, with real processes."""

from pathlib import Path
from typing import Annotated

import typer

from secagg.cli.options import JSONOption
from secagg.cli.output import Output

__all__ = ["demo"]


def demo(
    *,
    as_json: JSONOption = False,
) -> None:
    """Train."""
