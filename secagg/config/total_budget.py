"""Settings of a total over tasks that are given the same data."""

from dataclasses import dataclass
from pathlib import Path

from secagg.config.loader import setting
from secagg.errors import ErrorCode, LocalProtocolError
from secagg.protocol.policy import TotalBudget


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
            f"policy.data: {error}",
            fix=error.next_step,
        ) from None
