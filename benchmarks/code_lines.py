"""Count the lines of code of each package.

A line counts if it holds a token that is not a comment, a blank or a docstring.
Generated modules count as any other.  Run it in the checkout:
``python benchmarks/code_lines.py``.
"""

import ast
import io
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[1]
_NO_CODE: Final = frozenset(
    {
        tokenize.COMMENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
        tokenize.INDENT,
        tokenize.NEWLINE,
        tokenize.NL,
    }
)
# A text of several lines may hold blank ones and what looks like a comment.
_AMBIGUOUS: Final = re.compile(r"""\"{3}|'{3}|\\$""")
_WITH_DOCSTRING = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class PackageSize:
    """Size of one package.

    Attributes:
        lines: Lines of code.
        files: Python files.
        names: Files and folders at the root of the package.
    """

    lines: int
    files: int
    names: int


def code_lines(source: str) -> int:
    """Return how many lines of a module hold code.

    Args:
        source: Text of the module.

    Raises:
        SyntaxError: The text is not a Python module.
    """
    documented: set[int] = set()
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:  # statements alone: no expression holds a docstring
        node = waiting.pop()
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False):
            first = node.body[0]
            documented.update(range(first.lineno, (first.end_lineno or 0) + 1))
        waiting += [
            each
            for field in ("body", "orelse", "finalbody", "handlers", "cases")
            for each in getattr(node, field, ())
        ]
    texts = source.splitlines()
    outside = [text for at, text in enumerate(texts, 1) if at not in documented]
    if not any(_AMBIGUOUS.search(text) for text in outside):
        stripped = map(str.strip, outside)
        return sum(bool(text) and not text.startswith("#") for text in stripped)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def measure(package: Path) -> PackageSize:
    """Return the size of a package.

    Args:
        package: Its folder.
    """
    paths = list(package.rglob("*.py"))
    return PackageSize(
        lines=sum(code_lines(path.read_text(encoding="utf-8")) for path in paths),
        files=len(paths),
        names=sum(path.name != "__pycache__" for path in package.iterdir()),
    )


def main() -> None:
    """Print one row for each package of the checkout."""
    print(f"{'package':14}{'lines':>8}{'files':>7}{'names at its root':>20}")
    folders = ("secagg", "dpnoise", "tests", "benchmarks", "examples")
    doubles = "tests/support/secagg_testing"
    for folder in (_ROOT / name for name in (*folders, doubles)):
        size = measure(folder)
        print(f"{folder.name:14}{size.lines:8}{size.files:7}{size.names:20}")


if __name__ == "__main__":
    main()
