"""The exceptions of dpnoise, one class per kind of fault.

* Every exception raised on purpose by dpnoise derives from `DPNoiseError`, so one
  `except DPNoiseError` at a boundary is complete.
* A message states what was expected, what came, and the next step. A `ParameterError`
  also has the parameter's name, its value, and the nearest value that works.
* No message holds a secret: parameters are public, the entries of a vector are not.
  An `InputError` therefore names positions, lengths and kinds, never an entry.
* Every class survives pickling and copying with all its fields, because errors cross
  process boundaries in simulations.

It holds no checks. The code that knows a limit checks it.
"""

from typing import Self


class DPNoiseError(Exception):
    """Root of every exception that dpnoise raises on purpose."""


class ParameterError(DPNoiseError, ValueError):
    """A public parameter lies outside the range that works.

    Args:
        message: What was expected, what came and what to do, in one sentence or two.
        parameter: Name of the parameter as the caller spelled it.
        value: The value that was refused. It must be public: it is shown.
        nearest: The nearest value that works, as text, or None if no value does.
    """

    def __init__(
        self,
        message: str,
        *,
        parameter: str = "",
        value: object = None,
        nearest: str | None = None,
    ) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value
        self.nearest = nearest

    @classmethod
    def of(
        cls, parameter: str, value: object, rule: str, *, nearest: str | None = None
    ) -> Self:
        """Build the error for a value that breaks one rule of its parameter.

        Args:
            parameter: Name of the parameter as the caller spelled it.
            value: The value that was refused. It must be public: it is shown.
            rule: What it must be, such as "must be greater than 0".
            nearest: As above.
        """
        message = f"{parameter} {rule}, got {value!r}"
        return cls(message, parameter=parameter, value=value, nearest=nearest)

    def __str__(self) -> str:
        """The message, followed by the nearest value that works when there is one."""
        message = super().__str__()
        if self.nearest is None:
            return message
        return f"{message} (nearest value that works: {self.nearest})"


class TheoremNotApplicableError(ParameterError):
    """The parameters violate a hypothesis of the theorem that was to be applied.

    Args:
        message: Which hypothesis fails, and by how much.
        theorem: The theorem and its source, such as "Theorem 3.5 [Aga21]".
        parameter: Name of the parameter to change.
        value: Its present value.
        nearest: The nearest value for which the theorem applies, as text, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        theorem: str = "",
        parameter: str = "",
        value: object = None,
        nearest: str | None = None,
    ) -> None:
        super().__init__(message, parameter=parameter, value=value, nearest=nearest)
        self.theorem = theorem


class CalibrationError(DPNoiseError):
    """No amount of noise within the search range reaches the privacy target."""


class CertificateError(DPNoiseError):
    """A rigorous enclosure could not be established, so no figure may be reported."""


class InputError(DPNoiseError, ValueError):
    """A vector has a wrong type, shape or length, or an entry that is not finite."""


class MissingExtraError(DPNoiseError, ImportError):
    """A library that an extra brings is not installed; the message names the extra."""


class UnknownEventError(DPNoiseError, TypeError):
    """An accountant was handed a privacy event that it has no theorem for."""
