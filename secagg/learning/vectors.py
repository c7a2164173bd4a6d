"""Trees of arrays as flat vectors, and back.

Rule 1: the order of a vector is that of the names of its arrays, in ascending UTF-8
        bytes: two frameworks that list layers differently give one vector.
Rule 2: arrays are floats.  A count, such as that of a batch norm, is no update of
        bounded size, and is refused by its name.
Rule 3: arrays of frameworks are recognised by their methods; no framework is imported.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from secagg.errors import ErrorCode, InputError

Array = npt.NDArray[Any]
Flat = npt.NDArray[np.float64]
# Nested dicts, lists and tuples of arrays; what the library of a caller calls them.
Tree = Any

_TAG: Final = b"secagg/vector-spec/v1\x00"
# As many entries as a vector of the protocol may have.
_MAX_ENTRIES: Final = 1 << 30
_DTYPES: Final = ("<f2", "<f4", "<f8")


@dataclass(frozen=True, slots=True)
class VectorEntry:
    """One array of a tree.

    Attributes:
        name: Keys and places from the root, joined by "/"; in a key "~" is written
            "~0", and "/" is written "~1".
        shape: Its shape; () for a single number.
        dtype: "<f2", "<f4" or "<f8"; bfloat16 is written as "<f4", of which it is a
            part.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class VectorSpec:
    """The schema of a tree: which arrays, in which order, of which shape and type.

    Attributes:
        entries: In the order of their names.

    Example:
        spec = VectorSpec.of({"w": np.zeros((16, 10)), "b": np.zeros(10)})
        flat = spec.flatten(model)
        model = spec.restore(flat, like=model)
    """

    entries: tuple[VectorEntry, ...]

    @classmethod
    def of(cls, tree: Tree, *, select: Callable[[str], bool] | None = None) -> Self:
        """Read the schema of a tree.

        Args:
            tree: Nested dicts, lists and tuples of arrays or numbers.
            select: Which names belong to the vector; all by default.

        Raises:
            InputError: An array is not of floats, a key is no text, two arrays have
                one name, or nothing is left.
        """
        return cls.of_names(_leaves(tree, select or (lambda _: True)))

    @classmethod
    def of_names(cls, arrays: Mapping[str, Array]) -> Self:
        """Read the schema of arrays that have their full names already.

        Raises:
            InputError: An array is not of floats, or there are no numbers.
        """
        entries = tuple(
            VectorEntry(name, array.shape, _dtype(name, array))
            for name, array in sorted(arrays.items(), key=lambda item: item[0].encode())
        )
        if not 0 < sum(entry.size for entry in entries) <= _MAX_ENTRIES:
            raise ErrorCode.BAD_INPUT.error(
                f"the model has no numbers, or more than {_MAX_ENTRIES}",
                fix="Pass a dict of arrays, such as module.state_dict().",
            )
        return cls(entries)

    @cached_property
    def dim(self) -> int:
        """Entries of the vector."""
        return sum(entry.size for entry in self.entries)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the schema, 32 bytes: equal for trees that give one vector."""
        parts = [_TAG, len(self.entries).to_bytes(4, "big")]
        for entry in self.entries:
            name, dtype = entry.name.encode(), entry.dtype.encode()
            parts += [len(name).to_bytes(4, "big"), name]
            parts += [bytes([len(dtype)]), dtype, bytes([len(entry.shape)])]
            parts += [side.to_bytes(8, "big") for side in entry.shape]
        return sha256(b"".join(parts)).digest()

    def flatten(self, tree: Tree) -> Flat:
        """Return the numbers of a tree as one vector, shape (dim,).

        Args:
            tree: As the schema says; containers may differ, or be one flat dict by the
                names of the entries.

        Raises:
            InputError: An array is missing, has another shape or is not finite.
        """
        wanted = {entry.name for entry in self.entries}
        if isinstance(tree, Mapping) and set(tree) == wanted:
            leaves = {name: _float_leaf(name, leaf) for name, leaf in tree.items()}
        else:
            leaves = _leaves(tree, wanted.__contains__)
        if missing := wanted - leaves.keys():
            raise ErrorCode.BAD_INPUT.error(
                f"the model has no array {min(missing)!r}",
                fix="Return a model of the shape that was handed out.",
            )
        parts = []
        for entry in self.entries:
            array = leaves[entry.name]
            if array.shape != entry.shape:
                raise ErrorCode.BAD_INPUT.error(
                    f"the array {entry.name!r} has shape {array.shape}, expected "
                    f"{entry.shape}",
                    fix="Return a model of the shape that was handed out.",
                )
            parts.append(array.astype(np.float64).ravel())
        flat = np.concatenate(parts)
        self._check_finite(flat, "has NaN or infinity")
        return flat

    def unflatten(self, flat: npt.ArrayLike) -> dict[str, Array]:
        """Return the arrays by their names, in the types of the schema.

        Raises:
            InputError: Another length, or a number that a type cannot hold.
        """
        vector = np.asarray(flat, np.float64)
        if vector.shape != (self.dim,):
            raise ErrorCode.BAD_INPUT.error(
                f"the vector has shape {vector.shape}, the model needs ({self.dim},)",
                fix="Pass a vector that this schema has flattened.",
            )
        with np.errstate(over="ignore"):
            arrays = {
                entry.name: part.astype(entry.dtype).reshape(entry.shape)
                for entry, part in zip(
                    self.entries, self._split_entries(vector), strict=True
                )
            }
        rounded = np.concatenate([array.ravel() for array in arrays.values()])
        self._check_finite(rounded, "is too large for its type")
        return arrays

    def restore(self, flat: npt.ArrayLike, *, like: Tree) -> Tree:
        """Return a tree with the containers of another and the numbers of a vector.

        Tensors of torch stay tensors, on their device; other arrays become numpy's.
        What the schema leaves out is taken over from `like`.

        Raises:
            InputError: As `unflatten`.
        """
        return _rebuild_tree(like, "", self.unflatten(flat))

    def _split_entries(self, flat: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Return the part of a flat vector that each entry has."""
        ends = np.cumsum([entry.size for entry in self.entries])
        return np.split(flat, ends[:-1])

    def _check_finite(self, flat: npt.NDArray[Any], fault: str) -> None:
        """Refuse a vector that is not finite, and name the array."""
        if np.isfinite(flat).all():
            return
        for entry, part in zip(self.entries, self._split_entries(flat), strict=True):
            if not np.isfinite(part).all():
                raise ErrorCode.BAD_INPUT.error(
                    f"the array {entry.name!r} {fault}",
                    fix="Take smaller steps, or a wider type.",
                )


def _leaves(tree: Tree, select: Callable[[str], bool]) -> dict[str, Array]:
    """Return the selected arrays of a tree by name."""
    found: dict[str, Array] = {}
    for name, leaf in _named_leaves(tree, ""):
        if not select(name):
            continue
        if name in found:
            raise ErrorCode.BAD_INPUT.error(
                f"two arrays of the model have the name {name!r}",
                fix="Rename one of them.",
            )
        found[name] = _float_leaf(name, leaf)
    return found


def _named_leaves(tree: Tree, above: str) -> Iterator[tuple[str, Tree]]:
    """Yield the leaves of a tree with their names, in order."""
    children = _children(tree, above)
    if children is None:
        yield above, tree
        return
    for name, child in children:
        yield from _named_leaves(child, name)


def _children(tree: Tree, above: str) -> list[tuple[str, Tree]] | None:
    """Return the children of a container by their full names; None for a leaf."""
    if isinstance(tree, Mapping):
        items: list[tuple[object, Tree]] = list(tree.items())
    elif isinstance(tree, list | tuple):
        items = [(str(place), child) for place, child in enumerate(tree)]
    else:
        return None
    named = []
    for key, child in items:
        if not isinstance(key, str):
            raise ErrorCode.BAD_INPUT.error(
                f"a key of the model is of the type {type(key).__name__}",
                fix="Use texts as the keys of dicts.",
            )
        part = key.replace("~", "~0").replace("/", "~1")
        named.append((f"{above}/{part}" if above else part, child))
    return named


def _float_leaf(name: str, leaf: Tree) -> Array:
    """Return an array of floats."""
    is_bfloat16 = str(getattr(leaf, "dtype", "")).endswith("bfloat16")
    array: Array | None = None
    try:
        if hasattr(leaf, "detach"):  # torch; numpy has no bfloat16
            leaf = leaf.detach().cpu()
            array = (leaf.float() if is_bfloat16 else leaf).numpy()
        elif isinstance(leaf, float) or hasattr(leaf, "__array__"):
            array = np.asarray(leaf)
            array = array.astype(np.float32) if is_bfloat16 else array
    except Exception as error:  # noqa: BLE001 - code of the caller's type runs here
        raise ErrorCode.BAD_INPUT.error(
            f"the array {name!r} cannot be read ({type(error).__name__})",
            fix="Convert it to a numpy array of floats.",
        ) from None
    if array is None:
        raise _no_floats(name, type(leaf).__name__)
    _dtype(name, array)
    return array


def _dtype(name: str, array: Array) -> str:
    """Return the type of an array of floats."""
    dtype = array.dtype.newbyteorder("<").str
    if dtype not in _DTYPES:
        raise _no_floats(name, str(array.dtype))
    return dtype


def _no_floats(name: str, kind: str) -> InputError:
    """Return the error of an array of other values than floats."""
    return ErrorCode.BAD_INPUT.error(
        f"the array {name!r} of the model holds {kind}, expected floats",
        kind=InputError,
        fix="Leave it out with select=lambda name: ..., or convert it.",
    )


def _rebuild_tree(like: Tree, above: str, arrays: Mapping[str, Array]) -> Tree:
    """Return a tree of the same form with other arrays."""
    children = _children(like, above)
    if children is None:
        return like if above not in arrays else _as_leaf(like, arrays[above])
    rebuilt = [_rebuild_tree(child, name, arrays) for name, child in children]
    if isinstance(like, Mapping):
        return dict(zip(like, rebuilt, strict=True))
    if hasattr(like, "_fields"):  # a namedtuple
        return type(like)(*rebuilt)
    return type(like)(rebuilt)


def _as_leaf(like: Tree, array: Array) -> Tree:
    if hasattr(like, "new_tensor"):  # torch
        return like.new_tensor(array).to(like.dtype)
    return float(array) if isinstance(like, float) else array
