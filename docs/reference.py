"""Write the API reference: every public name, from its docstring, as HTML.

Run by ``make docs`` as ``python docs/reference.py DIRECTORY``. It needs no network, and
neither do the pages. Whatever pdoc warns of is an error.
"""

import inspect
import sys
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

import pdoc

# A page each. Modules that are not listed are no promise.
MODULES: Final = (
    "secagg",
    "secagg.advanced",
    "secagg.blocking",
    "dpnoise",
    "dpnoise.accounting",
    "dpnoise.accounting.bayesian",
    "dpnoise.encoding",
    "dpnoise.errors",
    "dpnoise.events",
    "dpnoise.local",
    "dpnoise.mechanisms",
    "dpnoise.planning",
    "dpnoise.answers",
    "dpnoise.bench",
    "dpnoise.samplers",
)


def _public_names(module: ModuleType) -> list[str]:
    """Return what a package lists, or what a module defines without an underscore."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    ]
    return getattr(module, "__all__", own)


def write_reference(directory: Path) -> list[str]:
    """Write one page for each module, an index and a search index.

    Args:
        directory: Where to write; made when it does not exist.

    Returns:
        Public names that have no docstring.

    Raises:
        Warning: A name that a module promises cannot be found, or documented.
    """
    warnings.simplefilter("error")
    silent = []
    for name in MODULES:
        module = import_module(name)
        for public in _public_names(module):
            value = getattr(module, public)
            if callable(value) and not inspect.getdoc(value):
                silent.append(f"{name}.{public}")
    pdoc.render.configure(
        docformat="google", footer_text="secagg", show_source=False, search=True
    )
    others = f"!(?!({'|'.join(MODULES)})$).*"
    pdoc.pdoc(*MODULES, others, output_directory=directory)
    return silent


if __name__ == "__main__":
    undocumented = write_reference(Path(sys.argv[1]))
    if undocumented:
        sys.exit(f"without a docstring: {', '.join(undocumented)}")
