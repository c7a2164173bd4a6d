"""Privacy events as JSON and back, exactly.

Numbered rules:

1. The encoding is canonical: equal events have equal text, so that text can be
   compared, hashed and counted.
2. Nothing is rounded: rationals are "numerator/denominator", floats are hexadecimal.
3. Decoding is total: an event or a `ParameterError`, and every check of the event's
   own constructor applies.

This module deliberately knows no mechanism and no accountant.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from dpnoise.errors import ParameterError
from dpnoise.events import (
    BinomialEvent,
    Composed,
    DiscreteGaussianEvent,
    DistributedDiscreteGaussianEvent,
    GaussianEvent,
    NoiseEvent,
    PoissonSampled,
    PrivacyEvent,
    Repeated,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
)

__all__ = ["event_from_json", "event_to_json"]

_KINDS: Final[Mapping[str, Callable[..., NoiseEvent]]] = MappingProxyType(
    {
        "skellam": SkellamEvent,
        "skellam-mixture": SkellamMixtureEvent,
        "skellam-mixture-clipped": SkellamMixtureClippedEvent,
        "distributed-discrete-gaussian": DistributedDiscreteGaussianEvent,
        "discrete-gaussian": DiscreteGaussianEvent,
        "binomial": BinomialEvent,
        "gaussian": GaussianEvent,
    }
)
_NAMES: Final[Mapping[object, str]] = MappingProxyType(
    {kind: name for name, kind in _KINDS.items()}
)
_MAX_DEPTH: Final = 16  # deeper nesting than any real task; bounds the recursion


def event_to_json(event: PrivacyEvent) -> str:
    """Encode an event.

    Args:
        event: Any event.

    Returns:
        Canonical JSON, one line.
    """
    return json.dumps(_encode(event), sort_keys=True, separators=(",", ":"))


def event_from_json(text: str) -> PrivacyEvent:
    """Decode an event.

    Args:
        text: What `event_to_json` returned.

    Returns:
        An equal event.

    Raises:
        ParameterError: The text is no encoding of a valid event.
    """
    try:
        return _decode(json.loads(text), _MAX_DEPTH)
    except (
        KeyError,
        TypeError,
        ValueError,
        ZeroDivisionError,
        RecursionError,
    ) as error:
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(
            f"text must encode a privacy event: {error}", parameter="text"
        ) from error


def _encode(event: PrivacyEvent) -> dict[str, object]:
    if isinstance(event, Composed):
        return {"kind": "composed", "events": [_encode(part) for part in event.events]}
    if isinstance(event, Repeated):
        return {
            "kind": "repeated",
            "event": _encode(event.event),
            "count": event.count,
        }
    if isinstance(event, PoissonSampled):
        return {
            "kind": "poisson-sampled",
            "event": _encode(event.event),
            "sampling_rate": float(event.sampling_rate).hex(),
        }
    fields: dict[str, object] = {"kind": _NAMES[type(event)]}
    for entry in dataclasses.fields(event):
        value = getattr(event, entry.name)
        if isinstance(value, Fraction):
            value = f"{value.numerator}/{value.denominator}"
        elif isinstance(value, float):
            value = value.hex()
        fields[entry.name] = value
    return fields


def _decode(record: object, depth: int) -> PrivacyEvent:
    if not isinstance(record, dict) or depth == 0:
        raise TypeError("expected an object, nested at most 16 deep")
    fields = dict(record)
    kind = fields.pop("kind")
    if kind == "composed":
        return Composed(tuple(_decode(part, depth - 1) for part in fields["events"]))
    if kind == "repeated":
        return Repeated(_decode(fields["event"], depth - 1), fields["count"])
    if kind == "poisson-sampled":
        inner = _decode(fields["event"], depth - 1)
        if isinstance(inner, PoissonSampled | Repeated | Composed):
            raise TypeError("only a single release can be sampled")
        return PoissonSampled(inner, float.fromhex(fields["sampling_rate"]))
    return _KINDS[kind](**{name: _value(value) for name, value in fields.items()})


def _value(value: object) -> object:
    if not isinstance(value, str):
        return value
    if "x" in value:
        return float.fromhex(value)
    return Fraction(value)
