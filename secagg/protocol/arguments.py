"""Checks of what callers hand over: arguments, and vectors of numbers.

Integers of numpy are accepted, and become those of Python.  The error for an unknown
name suggests the closest known one.  Error texts name the caller's own arguments, their
kinds and public values.

Lists, arrays, pandas Series and tensors become arrays of numbers. Data frames, masked
entries, text, generators and numbers that are not finite are refused. The texts about
vectors name types, shapes and positions, never values.
"""

import difflib
import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin

import numpy as np
import numpy.typing as npt

from secagg.errors import ErrorCode, InputError

_Called = TypeVar("_Called", bound=Callable[..., object])
_Member = TypeVar("_Member", bound=Enum)
_Kind = TypeVar("_Kind")
_Opened = TypeVar("_Opened", bound=type)

MAX_COUNT: Final = (1 << 63) - 1
"""The largest integer that every store can keep."""

_MAX_SHOWN: Final = 80
_OWN: Final = ("secagg.", "concurrent.")
_MADE: Final = {bool: "True or False", str: '"..."', bytes: 'b"..."'}


def did_you_mean(word: object, choices: Iterable[str]) -> str:
    """Return "Did you mean …?" for the closest choice, or all choices, one sentence."""
    known = tuple(choices)
    text = str(word)[:_MAX_SHOWN].replace("_", "-")
    close = difflib.get_close_matches(text, known, n=1)
    close = close or difflib.get_close_matches(text.replace("-", "_"), known, n=1)
    return f"Did you mean {close[0]}?" if close else f"Choose among {', '.join(known)}."


def check_whole(name: str, value: object, *, least: int, most: int = MAX_COUNT) -> int:
    """Return an argument as an int of Python.

    Args:
        name: Of the argument.
        value: Its value; integers of numpy are accepted, booleans are not.
        least: Smallest value that works.
        most: Largest value that works.

    Raises:
        LocalProtocolError: It is not an integer, or outside of the limits.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ErrorCode.LOCAL_MISUSE.error(
            f"{name} must be an integer, got {_type_name(value)}",
            fix=f"Give {name} as an int.",
        )
    number = int(value)
    if number < least:
        raise ErrorCode.LOCAL_MISUSE.error(
            f"{name} must be at least {least}, got {number}",
            fix=f"Give {name}={least} or more.",
        )
    if number > most:
        raise ErrorCode.LOCAL_MISUSE.error(
            f"{name} must be at most {most}, got a larger number",
            fix=f"Give {name}={most} or less.",
        )
    return number


def check_real(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
) -> float:
    """Return an argument as a finite float.

    Args:
        name: Of the argument.
        value: Its value; numbers of numpy are accepted, booleans are not.
        above: The number is larger than this.
        least: The number is this or more.
        below: The number is smaller than this.

    Raises:
        LocalProtocolError: It is not a number, not finite, or outside of the limits.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ErrorCode.LOCAL_MISUSE.error(
            f"{name} must be a number, got {_type_name(value)}",
            fix=f"Give {name} as a float.",
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isfinite(number) and above < number < below and least <= number:
        return number
    limits = [f"above {above:g}"] if above > -math.inf else []
    limits += [f"at least {least:g}"] if least > -math.inf else []
    limits += [f"below {below:g}"] if below < math.inf else []
    wanted = "".join(f", {limit}" for limit in limits)
    raise ErrorCode.LOCAL_MISUSE.error(
        f"{name} must be finite{wanted}, got {number!r}",
        fix=f"Give {name} within these limits.",
    )


def check_kind(name: str, value: object, kind: type[_Kind], *, make: str) -> _Kind:
    """Return an argument that is of the expected class.

    Args:
        name: Of the argument.
        value: Its value.
        kind: The expected class.
        make: How a program obtains one, for the next step.

    Raises:
        LocalProtocolError: It is of another class.
    """
    if isinstance(value, kind):
        return value
    raise ErrorCode.LOCAL_MISUSE.error(
        f"{name} must be of class {kind.__name__}, got {_type_name(value)}",
        fix=f"Give {name}={make}.",
    )


def check_member(name: str, value: object, kind: type[_Member]) -> _Member:
    """Return an argument that is a member of an enumeration.

    Raises:
        LocalProtocolError: It is not a member; names the closest one to a text.
    """
    if isinstance(value, kind):
        return value
    shown = repr(value) if isinstance(value, str) else _type_name(value)
    by_word = {each.name.lower().replace("_", "-"): each.name for each in kind}
    close = difflib.get_close_matches(
        str(value)[:_MAX_SHOWN].lower().replace("_", "-"), by_word, n=1
    )
    raise ErrorCode.LOCAL_MISUSE.error(
        f"{name} must be a member of {kind.__name__}, got {shown[:_MAX_SHOWN]}",
        fix=f"Did you mean {kind.__name__}.{by_word[close[0]]}?"
        if close
        else f"Choose among {', '.join(f'{kind.__name__}.{m.name}' for m in kind)}.",
    )


def check_names(name: str, value: object) -> frozenset[str]:
    """Return an argument that is a collection of names, as a set.

    Raises:
        LocalProtocolError: It is a single text, not a collection, or holds an entry
            that is not text.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ErrorCode.LOCAL_MISUSE.error(
            f"{name} must be several names, got {_type_name(value)}",
            fix=f"Give {name}=[...], with one text for each name.",
        )
    found = frozenset(value)
    for each in found:
        if not isinstance(each, str):
            raise ErrorCode.LOCAL_MISUSE.error(
                f"{name} holds {_type_name(each)}, expected text",
                fix=f"Give {name}=[...], with one text for each name.",
            )
    return found


def check_name(whose: str, value: object, *, most: int) -> str:
    """Return a name that an offer can carry and a terminal can show.

    Args:
        whose: Subject of the error's sentence, such as "a task".
        value: The name.
        most: Largest number of bytes of UTF-8.

    Raises:
        LocalProtocolError: It is not such a text.
    """
    if isinstance(value, str) and value.isprintable() and value == value.strip():
        try:
            size = len(value.encode())
        except UnicodeEncodeError:  # half of a surrogate pair
            size = 0
        if 1 <= size <= most:
            return value
    shown = repr(value[:_MAX_SHOWN]) if isinstance(value, str) else _type_name(value)
    raise ErrorCode.LOCAL_MISUSE.error(
        f"{whose} has a name of 1 to {most} bytes of printable characters, got {shown}",
        fix='Choose a short name, such as "digits-1".',
    )


def as_path(name: str, value: object) -> Path | None:
    """Return a path, or a text as a path; None stays None.

    Raises:
        LocalProtocolError: It is of another class, or empty.
    """
    if value is None or isinstance(value, Path):
        return value
    if hasattr(value, "__fspath__") or (isinstance(value, str) and value):
        return Path(value)
    raise ErrorCode.LOCAL_MISUSE.error(
        f"{name} must be a path, got {_type_name(value)}",
        fix=f"Give {name}=pathlib.Path(...).",
    )


def validates_arguments(called: _Called) -> _Called:
    """Make a class or a function refuse wrong arguments with a `LocalProtocolError`.

    The next step names the closest keyword, or the missing arguments.  By its
    annotation an argument is refused that is of another kind: a flag that is a text
    would count as true, and other kinds would fail where it is used.

    Returns:
        The class itself, or the function wrapped.
    """
    function = called.__init__ if isinstance(called, type) else called  # type: ignore[misc]  # of this class
    signature = inspect.signature(function)
    title = called.__name__

    keywords = [name for name in signature.parameters if name != "self"]

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> object:  # noqa: ANN401 - passed on
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            unknown = [name for name in kwargs if name not in keywords]
            complaint = f"cannot be called so: {error}"
            way_out = f"Give {title} its arguments by name."
            if unknown:
                complaint = f"has no argument {unknown[0]!r}"
                way_out = did_you_mean(unknown[0], keywords)
            elif missing := _missing_arguments(signature, args, kwargs):
                complaint = f"needs {' and '.join(missing)}"
                way_out = f"Give {', '.join(f'{name}=...' for name in missing)}."
            raise ErrorCode.LOCAL_MISUSE.error(
                f"{title} {complaint}", fix=way_out
            ) from None
        for name, value in given.items():
            _check_annotation(name, signature.parameters[name].annotation, value)
        return function(*args, **kwargs)

    if isinstance(called, type):
        called.__init__ = checked  # type: ignore[misc]  # the same signature
        return called
    return checked  # type: ignore[return-value]  # the same signature


def says_how_to_open(opened: _Opened) -> _Opened:
    """Make a class that opens in one kind of `with` refuse the other kind in words."""
    way_out = "Write `with`, or use the asynchronous Client, Server or local of secagg."
    right, wrong, names = "with", "async with", ("__aenter__", "__aexit__")
    if hasattr(opened, "__aenter__"):
        way_out = (
            "Write `async with`, or use Client, Server or local of secagg.blocking."
        )
        right, wrong, names = wrong, right, ("__enter__", "__exit__")

    def explain(_: object, *_error: object) -> None:
        raise ErrorCode.LOCAL_MISUSE.error(
            f"it opens with `{right}`, and was opened with `{wrong}`", fix=way_out
        )

    for name in names:
        setattr(opened, name, explain)
    return opened


def _check_annotation(name: str, annotation: object, value: object) -> None:
    """Refuse a value of another kind than its annotation, where that is one kind.

    Texts, bytes and numbers only where they are optional: where they are required, the
    callable says what is wrong with them.
    """
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    is_optional = NoneType in kinds
    if value is None and is_optional:
        return
    kind, *more = (each for each in kinds if each is not NoneType)
    if more:
        return
    if is_optional and kind is float:
        check_real(name, value)
    elif is_optional and kind is int:
        check_whole(name, value, least=-MAX_COUNT)
    elif kind is bool or (is_optional and kind in (str, bytes)):
        check_kind(name, value, kind, make=_MADE[kind])
    else:
        _check_object(name, kind, value)


def _check_object(name: str, kind: Any, value: object) -> None:  # noqa: ANN401 - any kind
    """Check that an argument has the methods that its type names."""
    if get_origin(kind) is Callable:
        if not callable(value):
            raise ErrorCode.LOCAL_MISUSE.error(
                f"{name} must be a function, got {_type_name(value)}",
                fix=f"Give {name} a function.",
            )
    elif isinstance(kind, type) and kind.__module__.startswith(_OWN):
        if issubclass(kind, Enum):
            check_member(name, value, kind)
        elif not getattr(kind, "_is_protocol", False):
            check_kind(name, value, kind, make=f"{kind.__name__}(...)")
        elif not all(hasattr(value, each) for each in vars(kind) if each[0] != "_"):
            raise ErrorCode.LOCAL_MISUSE.error(
                f"{name} must have the methods of {kind.__name__}, got "
                f"{_type_name(value)}",
                fix=f"Give {name} an object of a class that has them.",
            )


def _missing_arguments(
    signature: inspect.Signature, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[str]:
    """Return the required arguments that a call lacks; [] if it has another fault."""
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return []
    return [
        name
        for name, each in signature.parameters.items()
        if each.default is inspect.Parameter.empty and name not in given
    ]


def _type_name(value: object) -> str:
    """Return the name of a value's type; "None" for None."""
    return "None" if value is None else type(value).__name__


# The largest range of integers that a float64 holds exactly.
_LARGEST_INTEGER: Final = 1 << 53
_MAX_ITEMSIZE: Final = 8


def as_vector(
    given: object,
    dimension: int | None = None,
    *,
    noisy: bool = False,
    name: str = "the vector",
) -> npt.NDArray[Any]:
    """Return a caller's vector as one row of finite numbers.

    Args:
        given: A list or tuple of numbers, a numpy array, a pandas Series, a tensor of
            torch, or an array of JAX.  The last three are recognised by their methods.
        dimension: Entries that it must have; None for any number of at least one.
        noisy: The vector is for a task with noise, which adds up floats.
        name: Subject of the sentence in the error.

    Returns:
        Integers or floats of at most 64 bits, shape (dimension,); float64 if `noisy`.
            It may share memory with `given`.

    Raises:
        InputError: Not one row of numbers, another length, NaN or infinity; if `noisy`
            also integers beyond 2^53.
    """
    array = _as_array(given, name)
    if array.ndim != 1:
        raise ErrorCode.BAD_INPUT.error(
            f"{name} has shape {array.shape}, expected one dimension",
            fix="Flatten it with vector.ravel().",
        )
    if array.dtype.kind not in "iuf" or array.dtype.itemsize > _MAX_ITEMSIZE:
        raise ErrorCode.BAD_INPUT.error(
            f"{name} holds {array.dtype}, expected numbers of at most 64 bits",
            fix="Convert it with vector.astype(float).",
        )
    if dimension is not None and array.size != dimension:
        raise ErrorCode.BAD_INPUT.error(
            f"{name} has {array.size} entries, the task adds up vectors of {dimension}",
            fix="Supply a vector of that length.",
        )
    if array.size == 0:
        raise ErrorCode.BAD_INPUT.error(
            f"{name} is empty, expected at least one entry",
            fix="Supply a vector of the length that the task adds up.",
        )
    if array.dtype.kind == "f":
        finite = np.isfinite(array)
        if not finite.all():
            raise ErrorCode.BAD_INPUT.error(
                f"{name} has NaN or infinity, first at entry {int(np.argmin(finite))}",
                fix="Replace such entries.",
            )
    elif noisy and max(int(array.max()), -int(array.min())) > _LARGEST_INTEGER:
        raise ErrorCode.BAD_INPUT.error(
            f"{name} has integers that a float64 cannot hold", fix="Scale it down."
        )
    return array.astype(np.float64, copy=False) if noisy else array


def _as_array(given: object, name: str) -> npt.NDArray[Any]:
    """Return an array of any kind and shape, without a copy where possible."""
    if isinstance(given, np.ma.MaskedArray):
        if np.ma.getmaskarray(given).any():
            raise ErrorCode.BAD_INPUT.error(
                f"{name} has masked entries",
                fix="Fill them, for example with vector.filled(0).",
            )
        return np.asarray(given.data)
    try:
        _refuse_non_array(given, name)
        tensor: Any = given
        if hasattr(tensor, "detach") and hasattr(tensor, "cpu"):  # torch
            tensor = tensor.detach().cpu().numpy()
        return np.asarray(tensor)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - code of the caller's type runs here
        # The cause may quote entries, so the traceback omits it.
        raise ErrorCode.BAD_INPUT.error(
            f"{name}, {_kind_of(given)}, cannot be read as one row of numbers "
            f"({type(error).__name__})",
            fix="Supply a flat list or a numpy array of float64.",
        ) from None


def _refuse_non_array(given: object, name: str) -> None:
    """Refuse objects that are not arrays, with the way to make one."""
    if inspect.iscoroutine(given):
        given.close()  # otherwise Python warns that it was never awaited
        complaint, way_out = "is a coroutine", "Await it, and pass the result."
    elif inspect.isawaitable(given):
        complaint, way_out = "has to be awaited", "Await it, and pass the result."
    elif given is None or isinstance(given, str | bytes | bytearray):
        complaint, way_out = f"is {_kind_of(given)}", "Supply a list of numbers."
    elif isinstance(given, Iterator):
        complaint, way_out = "is an iterator", "Supply list(vector)."
    elif isinstance(given, Mapping | AbstractSet):
        complaint, way_out = f"is {_kind_of(given)}", "Supply a list of its numbers."
    elif hasattr(given, "to_numpy") and hasattr(given, "columns"):  # pandas, polars
        complaint, way_out = "is a table", "Supply frame.to_numpy().ravel()."
    elif hasattr(given, "toarray") and hasattr(given, "nnz"):  # scipy
        complaint, way_out = "is sparse", "Supply vector.toarray().ravel()."
    else:
        return
    raise ErrorCode.BAD_INPUT.error(
        f"{name} {complaint}, expected one row of numbers", fix=way_out
    )


def _kind_of(given: object) -> str:
    """Return the kind of a value, for an error."""
    if given is None:
        return "None"
    if isinstance(given, str | bytes | bytearray):
        return "text"
    return f"of type {type(given).__name__}"
