"""Settings that several programs share: certificates, log, state, rates, totals.

A total counts tasks that are given the same data.  Rates are read as people write them:
"1/10", "0.1" or "1", and never through a float.
"""

import re
from dataclasses import MISSING, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from secagg.config.loader import setting
from secagg.errors import ErrorCode, LocalProtocolError
from secagg.protocol.policy import TotalBudget
from secagg.protocol.profiles import MAX_DEADLINE_SECONDS


def clients_setting(doc: str, *, default: object = MISSING, low: int = 2) -> Any:  # noqa: ANN401 - as `setting`
    """Declare a number of clients, of a cohort at most; arguments as of `setting`."""
    return setting(doc, default=default, low=low, high=65_535, unit="clients")


def deadline_setting(doc: str, *, default: int = 60) -> Any:  # noqa: ANN401 - as `setting`
    """Declare how long a round may last, whole seconds; arguments as of `setting`."""
    return setting(
        doc, default=default, low=1, high=MAX_DEADLINE_SECONDS, unit="seconds"
    )


@dataclass(frozen=True, slots=True)
class TLSSection:
    """Files of mutual TLS; there is no plaintext mode."""

    ca: Path = setting("Certificate of the authority that signed the other side.")
    certificate: Path = setting("This program's own certificate.")
    key: Path = setting("Private key of that certificate; no other user may read it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSection:
    """Settings of any process that keeps a state and writes a log."""

    rollback_mark: Path | None = setting(
        "File outside state_dir and its backups that tells a restored state from the "
        "newest one; empty for one under ~/.local/state/secagg.",
        default=None,
    )
    log_level: str = setting(
        "Least severe log line on standard error.",
        default="info",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = setting(
        "How a log line is written: text for people, or json for programs, one object "
        "a line.",
        default="text",
        choices=("text", "json"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSection(ProcessSection):
    """Further settings of a process with receipts."""

    keep_receipts: int = setting(
        "How many receipts of one task stay, the latest ones.",
        default=10_000,
        low=16,
        high=1_000_000,
        unit="receipts",
    )


@dataclass(frozen=True, slots=True)
class SeriesSection:
    """The series of sums of a task of any kind."""

    id: str = setting("Name of the task; clients ask for it.")
    steps: int = setting(
        "How many sums the task releases.",
        default=1,
        low=1,
        high=1_000_000,
        unit="sums",
    )
    participations: int | None = setting(
        "Most of these sums that hold the data of one client; the noise is planned for "
        "them, and clients give to no more. Empty means all steps.",
        default=None,
        low=1,
        high=1_000_000,
        unit="sums",
    )

    @property
    def sums_of_one_client(self) -> int:
        """Most sums of the task that hold the data of one client, n."""
        return self.steps if self.participations is None else self.participations


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSection:
    """What all tasks together may cost one client's data."""

    data: str | None = setting(
        "Name of the data that this client gives, its owner's own; tasks that are "
        "given the same data have one total. Empty for no total.",
        default=None,
    )
    total_epsilon: float | None = setting(
        "Largest epsilon of all tasks together that are given these data; required "
        "with data.",
        default=None,
        low=1e-6,
        high=1e9,
    )
    total_delta: float | None = setting(
        "Largest delta that goes with it.", default=None, low=1e-300, high=0.999999
    )
    data_dir: Path | None = setting(
        "Where tasks' claims on these data are kept: the same directory for all "
        "clients that give them, in no backup. Empty for state_dir, and this client "
        "alone.",
        default=None,
    )
    data_rollback_mark: Path | None = setting(
        "File outside data_dir and its backups that tells restored claims from the "
        "newest ones. All clients use the same; empty for one under "
        "~/.local/state/secagg.",
        default=None,
    )


def total_budget(section: DataSection) -> TotalBudget | None:
    """Return the total of the settings; None if they have no total.

    Raises:
        ServiceError: BAD_SETTINGS; it is incomplete, or not a bound.
    """
    values = {
        "data": section.data,
        "total_epsilon": section.total_epsilon,
        "total_delta": section.total_delta,
    }
    missing = [name for name, value in values.items() if value is None]
    if (
        len(missing) == len(values)
        and section.data_dir is None
        and section.data_rollback_mark is None
    ):
        return None
    if section.data is None or (
        section.total_epsilon is None or section.total_delta is None
    ):
        raise ErrorCode.BAD_SETTINGS.error(
            f"policy.{missing[0]} is missing: a total has a name of data, an epsilon "
            "and a delta",
            fix="Set policy.data, total_epsilon and total_delta, or none of them "
            "and no data_dir.",
        )
    try:
        return TotalBudget(
            data=section.data,
            epsilon=section.total_epsilon,
            delta=section.total_delta,
            directory=section.data_dir,
            rollback_mark=section.data_rollback_mark,
        )
    except LocalProtocolError as error:
        raise ErrorCode.BAD_SETTINGS.error(
            f"policy.data: {error}", fix=error.next_step
        ) from None


_RATE: Final = re.compile(r"\d{1,9}/0*[1-9]\d{0,8}|\d{1,9}(\.\d{1,9})?", re.ASCII)


def parse_rate(text: str, *, name: str) -> Fraction:
    """Read a rate.

    Args:
        text: Two whole numbers with a slash between them, or a decimal number.
        name: Of the setting or option, for the error.

    Returns:
        The rate, exactly as written; the planner checks its range.

    Raises:
        ServiceError: BAD_SETTINGS; it is not a number.
    """
    if _RATE.fullmatch(text) is None:
        raise ErrorCode.BAD_SETTINGS.error(
            f"{name} is no rate: {text!r}",
            fix='Write it as "1/10", or as "0.1" with at most nine digits.',
        )
    return Fraction(text)
