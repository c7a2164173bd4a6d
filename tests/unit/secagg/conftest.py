"""What several test files of this folder share."""

import importlib
import sys
from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parents[2] / "vectors" / "protocol"


@pytest.fixture(scope="module")
def reference_modules():
    """The reference of the wire protocol and its generator, by module name.

    Its modules import each other by their bare names, as a script beside them would;
    neither names nor path stay behind.
    """
    names = [path.stem for path in DIRECTORY.glob("*.py")]
    sys.path.insert(0, str(DIRECTORY))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(DIRECTORY))
        for name in names:
            sys.modules.pop(name, None)
