"""From a server's settings to the parameters of its sessions.

Rule 1: with a budget, modulus and dimension come from the planner and the noise block
        from `secagg.distributed_dp`; without one, the operator has acknowledged in
        words that sums are exact.
Rule 2: what is left open in the settings gets the safest value that works: a majority
        as threshold, and no more losses than the survivors allow.
"""

import asyncio
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.config import ServerSettings
from secagg.distributed_dp import (
    DPNoiseError,
    NoisedTask,
    ParameterError,
    Plan,
    PrivacyReport,
    plan,
)
from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.parameters import Profile, ProtocolParameters, RoundDeadlines
from secagg.report_cache import privacy_report
from secagg.server.task_memory import RememberedTask, recall, remember
from secagg.storage.book import Book
from secagg.wire.limits import check_transportable

__all__ = [
    "PreparedTask",
    "plan_noise",
    "prepare_task",
    "settle_task",
    "spare_sessions",
]

# Sums of a thousand clients with entries up to four million stay exact.
_DEFAULT_BITS_WITHOUT_NOISE: Final = 32
_SESSIONS_PER_SPARE: Final = 20


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """What a server is about to run.

    Attributes:
        parameters: Of every session of the task.
        noised: Mechanism and budget; None for a task that releases exact sums.
        report: What the whole task costs its users; None with `noised`.
        forecast_rmse: Expected error of one entry of a sum in the caller's units; None
            with `noised`.
        payload: Bytes handed to every client; b"" for none.
    """

    parameters: ProtocolParameters
    noised: NoisedTask | None
    report: PrivacyReport | None
    forecast_rmse: float | None
    payload: bytes


async def settle_task(settings: ServerSettings, book: Book) -> PreparedTask:
    """Return the task as it was first planned; plan and remember it the first time.

    Its privacy report is kept in the state directory.

    Raises:
        ServiceError: BAD_SETTINGS or INFEASIBLE, as `prepare_task`; STORAGE_FAILED.
    """
    known = await recall(book, settings)
    prepared = await asyncio.to_thread(
        prepare_task, settings, known=known, reports=settings.server.state_dir
    )
    if known is None:
        planned = RememberedTask(prepared.parameters, prepared.forecast_rmse)
        await remember(book, settings, planned)
    return prepared


def prepare_task(
    settings: ServerSettings,
    *,
    known: RememberedTask | None = None,
    reports: Path | None = None,
    keep: bool = True,
) -> PreparedTask:
    """Check the settings of a task and work out what they leave open.

    Args:
        settings: The server's.
        known: What was worked out for these settings before; None to plan afresh.
        reports: Directory that keeps the privacy report from one start to the next;
            None to compute it afresh.
        keep: Whether a report is written down there; False changes no file.

    Raises:
        ServiceError: BAD_SETTINGS or INFEASIBLE; names the setting and the nearest
            value that works.
    """
    payload = _read_payload(settings)
    try:
        task = known or _work_out(settings)
        check_transportable(task.parameters)
        noised = (
            NoisedTask.from_parameters(task.parameters)
            if task.parameters.noise_block
            else None
        )
    except ParameterError as error:
        raise ServiceError(
            f"the budget under [noise] cannot be met: {error}",
            code=ErrorCode.BAD_SETTINGS,
            next_step="Correct the setting, or try values with `secagg plan`.",
        ) from None
    except DPNoiseError as error:
        raise ServiceError(
            f"no noise meets the budget under [noise]: {error}",
            code=ErrorCode.INFEASIBLE,
            next_step="Allow a larger epsilon or delta, or ask for more clients.",
        ) from None
    except RemoteProtocolError as error:
        # Raised for values that no session can have; here they are the operator's.
        raise ServiceError(
            f"the task cannot run with these settings: {error}",
            code=ErrorCode.BAD_SETTINGS,
            next_step="Correct the number under [cohort], [vector] or [task].",
        ) from None
    return PreparedTask(
        parameters=task.parameters,
        noised=noised,
        report=_report(noised, reports, keep=keep),
        forecast_rmse=task.forecast_rmse,
        payload=payload,
    )


def _report(
    noised: NoisedTask | None, reports: Path | None, *, keep: bool
) -> PrivacyReport | None:
    if noised is None or reports is None:
        return None if noised is None else noised.report()
    return privacy_report(noised, reports, keep=keep)


def plan_noise(settings: ServerSettings) -> Plan:
    """Plan the noise of a task with a budget.

    Raises:
        DPNoiseError: The budget cannot be met.
        ServiceError: BAD_SETTINGS; the budget is incomplete.
    """
    noise, cohort = settings.noise, settings.cohort
    if noise.epsilon is None or noise.delta is None or noise.l2_clip is None:
        raise ServiceError(  # the loader has checked it for files already
            "noise.epsilon, noise.delta and noise.l2_clip belong together",
            code=ErrorCode.BAD_SETTINGS,
            next_step="Set all three.",
        )
    return plan(
        clients=cohort.max_clients,
        dimension=settings.vector.dimension,
        l2_clip=noise.l2_clip,
        epsilon=noise.epsilon,
        delta=noise.delta,
        bits=settings.vector.modulus_bits,
        mechanism=noise.mechanism,
        scale_factor=noise.scale_factor,
        steps=settings.task.sessions + spare_sessions(settings),
        min_survivors=cohort.min_survivors,
        colluders=cohort.colluders,
        accountant=noise.accountant,
        rotation=noise.rotation,
    )


def spare_sessions(settings: ServerSettings) -> int:
    """Return how many sessions the budget of a task covers beyond its sums.

    A session may end after its inputs were fixed, and then stays spent; without a
    spare one such a fault would end the task. A colluder can cause one at will.
    """
    task = settings.task
    if task.spare is not None:
        return task.spare
    if task.attempts == 1:
        return 0
    return -(-task.sessions // _SESSIONS_PER_SPARE) + settings.cohort.colluders


def _work_out(settings: ServerSettings) -> RememberedTask:
    if settings.noise.none:
        return RememberedTask(_protocol_parameters(settings).validate(), None)
    made = plan_noise(settings)
    noised = NoisedTask.from_plan(
        made, _protocol_parameters(settings), spare=spare_sessions(settings)
    )
    return RememberedTask(noised.parameters, math.sqrt(made.forecast.expected_mse))


def _protocol_parameters(settings: ServerSettings) -> ProtocolParameters:
    cohort, rounds = settings.cohort, settings.rounds
    # A majority, so that two disjoint groups cannot both rebuild secrets.
    threshold = cohort.threshold or (cohort.degree or cohort.max_clients) // 2 + 1
    max_dropouts = cohort.max_dropouts
    if max_dropouts is None:
        max_dropouts = cohort.max_clients - cohort.min_survivors
    bits = settings.vector.modulus_bits or _DEFAULT_BITS_WITHOUT_NOISE
    return ProtocolParameters(
        profile=Profile.from_label(settings.task.profile),
        modulus=1 << bits,
        dimension=settings.vector.dimension,
        min_clients=cohort.min_clients,
        max_clients=cohort.max_clients,
        threshold=threshold,
        degree=cohort.degree,
        min_survivors=cohort.min_survivors,
        max_dropouts=max(0, max_dropouts),
        colluders=cohort.colluders,
        deadlines=RoundDeadlines(
            advertise_keys=rounds.advertise_keys,
            share_keys=rounds.share_keys,
            masked_input=rounds.masked_input,
            unmasking=rounds.unmasking,
        ),
    )


def _read_payload(settings: ServerSettings) -> bytes:
    path = settings.task.payload
    if path is None:
        return b""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ServiceError(
            f"the payload {path} cannot be read: {error.strerror}",
            code=ErrorCode.BAD_SETTINGS,
            next_step="Correct task.payload, or remove it.",
        ) from None
