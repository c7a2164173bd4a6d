"""Settings of one task: its sessions, vectors, cohort, noise and rounds.

Ranges here catch typing errors early.  `secagg.protocol.parameters` decides which
sessions are possible.

When sessions of a task open: one after the other, or one in each slot of time.

Rule 1: slots are counted from 1970 in UTC, so that every restart and every machine
        agrees on them: `every 1h` begins at the full hour, `every 1d` at midnight UTC.
Rule 2: a slot whose window has passed is missed, and missed slots are not made up for.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Literal, Self

from secagg.config.common import SeriesSection, clients_setting, deadline_setting
from secagg.config.loader import setting
from secagg.config.noise import NoiseSection
from secagg.errors import ErrorCode, ServiceError
from secagg.pki.key_files import parse_key
from secagg.protocol.descriptor import MAX_TASK_ID_BYTES
from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT
from secagg.protocol.profiles import Profile
from secagg.transport.peer_identity import DEFAULT_TRUST_DOMAIN, PeerIdentity, Role

CONTINUOUS: Final = "continuous"
_EVERY: Final = "every "
_DURATION: Final = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# Shorter slots are `continuous`; longer ones serve no task.
_SHORTEST: Final = 1
_LONGEST: Final = 366 * 86_400


def seconds_of(text: str, key: str) -> int:
    """Return a duration such as 30m in seconds.

    Args:
        text: A whole number and s, m, h or d; one second to 366 days.
        key: The setting that holds it, for the message.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    found = _DURATION.fullmatch(text.strip())
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not _SHORTEST <= seconds <= _LONGEST:
        raise ErrorCode.BAD_SETTINGS.error(
            f"{key} is no duration from one second to 366 days: {text!r}",
            fix="Write a whole number and s, m, h or d, such as 30m.",
        )
    return seconds


@dataclass(frozen=True, slots=True)
class Slot:
    """A stretch of time in which one session of a task opens.

    Attributes:
        start: When, in Unix seconds.
        closes: Until when a session may open and take adverts, in Unix seconds.
        next_start: Of the slot after it.
    """

    start: float
    closes: float
    next_start: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Slots of time, or none.

    Attributes:
        period: Length of a slot in seconds; None for sessions one after the other.
        window: For how long of it adverts are taken, in seconds.
    """

    period: int | None = None
    window: int | None = None

    @classmethod
    def parse(cls, schedule: str, window: str | None) -> Self:
        """Read `task.schedule` and `task.window`.

        Raises:
            ServiceError: BAD_SETTINGS; the message names the setting.
        """
        if schedule == CONTINUOUS:
            if window is not None:
                raise ErrorCode.BAD_SETTINGS.error(
                    "task.window needs a schedule: sessions that follow one another "
                    "wait for clients as long as it takes",
                    fix='Set schedule = "every 1h", or remove the window.',
                )
            return cls()
        if not schedule.startswith(_EVERY):
            raise ErrorCode.BAD_SETTINGS.error(
                f"task.schedule is neither continuous nor every: {schedule!r}",
                fix='Write "continuous", or "every 1h" with s, m, h or d.',
            )
        period = seconds_of(schedule.removeprefix(_EVERY), "task.schedule")
        if window is None:
            return cls(period, period)
        open_for = seconds_of(window, "task.window")
        if open_for > period:
            raise ErrorCode.BAD_SETTINGS.error(
                f"task.window is longer than the schedule's {period} seconds",
                fix="Choose a shorter window, or a longer schedule.",
            )
        return cls(period, open_for)

    def slot(self, moment: float) -> Slot | None:
        """Return the slot that a moment, in Unix seconds, lies in; None without any."""
        if self.period is None or self.window is None:
            return None
        start = moment // self.period * self.period
        return Slot(start, start + self.window, start + self.period)


@dataclass(frozen=True, slots=True)
class TaskSection(SeriesSection):
    """The series of sums that this server runs."""

    schedule: str = setting(
        'When sessions open: "continuous" for one after the other, or "every 1h" (s, '
        "m, h, d; counted in UTC) for one in each hour.",
        default=CONTINUOUS,
    )
    window: str | None = setting(
        "For how long of each slot of the schedule clients may join, such as 30m; "
        "empty for all of it.",
        default=None,
    )
    attempts: int = setting(
        "How often one sum is tried before the task is paused; waiting for clients is "
        "no attempt.",
        default=3,
        low=1,
        high=100,
        unit="attempts",
    )
    ends: str | None = setting(
        "Date and time in UTC, such as 2027-01-31T18:00:00Z. From then on no session "
        "of the task begins or waits for clients; empty for none.",
        default=None,
    )
    spare_sessions: int | None = setting(
        "Sessions of one client that the privacy budget covers beyond its "
        "participations: each replaces one that ended when it may have shown "
        "something. Empty means none if a sum is tried once, else one for every twenty "
        "participations and one for every colluder.",
        default=None,
        low=0,
        high=1_000_000,
        unit="sessions",
    )
    profile: str = setting(
        "Named threat model; malicious-server-sparse is experimental and unreviewed.",
        default="honest-curious-server",
        choices=[profile.label for profile in Profile],
    )
    payload: Path | None = setting(
        "File handed to every client, for example a model.", default=None
    )
    invited: tuple[str, ...] = setting(
        "Client names that may take part; empty for all clients with a certificate.",
        default=(),
    )


@dataclass(frozen=True, slots=True)
class VectorSection:
    """The vector that one client contributes."""

    dimension: int = setting(
        "Entries of one vector.", low=1, high=1 << 30, unit="entries"
    )
    modulus_bits: int | None = setting(
        "Sums are exact modulo 2^modulus_bits. Empty lets the planner choose if the "
        "task has noise, and means 32 otherwise.",
        default=None,
        low=1,
        high=62,
        unit="bits",
    )


@dataclass(frozen=True, slots=True)
class CohortSection:
    """The clients of a session, and how many may drop out."""

    min_clients: int = clients_setting("Smallest cohort that starts.")
    max_clients: int = clients_setting(
        "Largest cohort; the session starts as soon as it is full."
    )
    min_survivors: int = clients_setting("Fewest inputs that a released sum adds up.")
    threshold: int = setting(
        "Shares that rebuild a secret. 0 means one more than half of max_clients, or "
        'of the degree on a ring; with degree "auto" it means the fewest that are '
        "safe.",
        default=0,
        low=0,
        high=65_535,
        unit="shares",
    )
    max_dropouts: int | None = clients_setting(
        "Most clients that may be lost after sharing; empty means max_losses.",
        default=None,
        low=0,
    )
    max_losses: int | None = clients_setting(
        "Most clients that may be lost after joining; empty means "
        "max_clients - min_survivors.",
        default=None,
        low=0,
    )
    colluders: int = clients_setting(
        "Clients assumed to help the server.", default=0, low=0
    )
    degree: int | Literal["auto"] = setting(
        'Neighbours of each client on a ring. 0 means the complete graph, "auto" the '
        "fewest that are safe with these numbers, or 0 where no ring is safe. In the "
        "profile malicious-server-sparse, how many others each client draws; 0 is "
        "refused there.",
        default=0,
        low=0,
        high=65_534,
        unit="neighbours",
    )
    graph_bits: int = setting(
        "On a ring, a session is not summed up if it is unsafe with a probability "
        "above 2^-graph_bits; drawn neighbours must be as safe.",
        default=40,
        low=1,
        high=128,
        unit="bits",
    )
    quorum: int | None = clients_setting(
        "Signatures on the members of the sum that clients demand before they unmask,"
        " in the profile malicious-server-sparse; empty means the fewest that are "
        "safe.",
        default=None,
    )


@dataclass(frozen=True, slots=True)
class RoundsSection:
    """How long each round stays open at most."""

    advertise_keys: int = deadline_setting("Waiting for clients to join.")
    choose_edges: int = deadline_setting(
        "Waiting for lists of drawn neighbours; only in the profile "
        "malicious-server-sparse."
    )
    share_keys: int = deadline_setting("Waiting for shares.")
    masked_input: int = deadline_setting(
        "Waiting for masked inputs; grows while uploads progress.", default=300
    )
    consistency: int = deadline_setting(
        "Waiting for signatures on the members of the sum; only in profiles that "
        "distrust the server."
    )
    unmasking: int = deadline_setting("Waiting for shares of the survivors.")


@dataclass(frozen=True, slots=True)
class EnrolmentSection:
    """The credentials that count, in profiles that distrust the server."""

    trust_domain: str = setting(
        "Name of the deployment, as in its certificates and credentials.",
        default=DEFAULT_TRUST_DOMAIN,
    )
    enrolment_key: str | None = setting(
        "Public key of the issuer, ed25519: and 64 digits; required by profiles that "
        "distrust the server. Empty for none.",
        default=None,
    )
    revocations: Path | None = setting(
        "The issuer's newest revocation list; empty before the first revocation.",
        default=None,
    )


def _plain_value(value: object) -> object:
    """Return a value in the words of TOML and JSON."""
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Everything that decides one task."""

    task: TaskSection
    vector: VectorSection
    cohort: CohortSection
    noise: NoiseSection
    rounds: RoundsSection
    enrolment: EnrolmentSection

    def document(self) -> dict[str, dict[str, object]]:
        """Return the task as a settings file would, for `task_from_document`.

        Unset keys are omitted, and paths are absolute.
        """
        return {
            section.name: {
                key: _plain_value(value)
                for key, value in dataclasses.asdict(
                    getattr(self, section.name)
                ).items()
                if value is not None
            }
            for section in dataclasses.fields(TaskSettings)
        }

    @property
    def schedule(self) -> Schedule:
        """When sessions open."""
        return Schedule.parse(self.task.schedule, self.task.window)


def check_task(settings: TaskSettings, *, origins: Mapping[str, str]) -> None:
    """Refuse contradictory settings.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    _check_name(settings.task.id, origins)
    _check_invited(settings, origins)
    _check_participations(settings, origins)
    _check_enrolment(settings)
    end_of_task(settings.task)
    Schedule.parse(settings.task.schedule, settings.task.window)
    noise = settings.noise
    budget = {
        "epsilon": noise.epsilon,
        "delta": noise.delta,
        # Counts are bounded entry by entry.
        "l2_clip": noise.max_nonzero or noise.l2_clip,
    }
    missing = [name for name, value in budget.items() if value is None]
    if not noise.none and missing:
        raise ErrorCode.BAD_SETTINGS.error(
            f"noise.{missing[0]} is missing: without a budget the sum would be "
            "released without noise",
            fix="Set epsilon, delta and l2_clip under [noise], or write "
            f'none = "{NO_NOISE_ACKNOWLEDGEMENT}" there.',
        )
    if noise.none and len(missing) < len(budget):
        given = next(name for name, value in budget.items() if value is not None)
        raise ErrorCode.BAD_SETTINGS.error(
            f"noise.none waives the noise, but noise.{given} asks for some",
            fix="Remove one of the two.",
        )


def end_of_task(task: TaskSection) -> datetime | None:
    """Return when a task ends; None for a task without a date.

    Raises:
        ServiceError: BAD_SETTINGS; it is no date and time in UTC.
    """
    if task.ends is None:
        return None
    try:
        moment = datetime.fromisoformat(task.ends)
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() != timedelta(0):
        raise ErrorCode.BAD_SETTINGS.error(
            f"task.ends is no date and time in UTC: {task.ends!r}",
            fix='Write it as "2027-01-31T18:00:00Z".',
        )
    return moment


def _check_name(name: str, origins: Mapping[str, str]) -> None:
    """Refuse a name that no offer can carry, or that alters a terminal."""
    if name.isprintable() and 1 <= len(name.encode()) <= MAX_TASK_ID_BYTES:
        return
    raise ErrorCode.BAD_SETTINGS.error(
        f"task.id has 1 to {MAX_TASK_ID_BYTES} bytes of printable characters, not "
        f"{name[:MAX_TASK_ID_BYTES]!r} (from {origins['task.id']})",
        fix='Choose a short name, for example id = "digits".',
    )


def _check_invited(settings: TaskSettings, origins: Mapping[str, str]) -> None:
    """Refuse a name that no client can have: it would invite no client."""
    for name in settings.task.invited:
        try:
            PeerIdentity(DEFAULT_TRUST_DOMAIN, Role.CLIENT, name)
        except ServiceError as error:
            raise ErrorCode.BAD_SETTINGS.error(
                f"task.invited holds a name that no certificate can carry: {error} "
                f"(from {origins['task.invited']})",
                fix="Name clients as their certificates do, for example "
                'invited = ["client-1", "client-2"], or --set '
                "task.invited=client-1,client-2.",
            ) from None


def _check_participations(settings: TaskSettings, origins: Mapping[str, str]) -> None:
    """Refuse participations beyond the sums, or an invited list that is too short."""
    task, given = settings.task, settings.task.participations
    if settings.noise.none:
        if given is None:
            return
        raise ErrorCode.BAD_SETTINGS.error(
            "task.participations limits what noise has to cover, but the task has no "
            f"noise (from {origins['task.participations']})",
            fix="Remove task.participations, or set a budget under [noise].",
        )
    if given is not None and given > task.steps:
        raise ErrorCode.BAD_SETTINGS.error(
            f"task.participations is {given}, and the task releases {task.steps} sums: "
            f"noise would be paid for and not used (from "
            f"{origins['task.participations']})",
            fix="Lower task.participations to at most task.steps.",
        )
    shortfall = shortfall_of(
        len(task.invited),
        participations=task.sums_of_one_client,
        steps=task.steps,
        min_clients=settings.cohort.min_clients,
    )
    if task.invited and shortfall:
        raise ErrorCode.BAD_SETTINGS.error(
            f"task.invited is too short: {shortfall} (from {origins['task.invited']})",
            fix="Invite more clients, or raise task.participations.",
        )


def shortfall_of(
    clients: int, *, participations: int, steps: int, min_clients: int
) -> str:
    """Say why so many clients cannot fill all sums of a task; "" if they can.

    Args:
        clients: That may take part.
        participations: Most sums that hold the data of one of them.
        steps: Sums of the task.
        min_clients: Fewest inputs of one session that starts.
    """
    given, needed = clients * participations, steps * min_clients
    if given >= needed:
        return ""
    return (
        f"{clients} clients with {participations} participations each give {given} "
        f"vectors, and {steps} sums of {min_clients} clients need {needed}"
    )


def _check_enrolment(settings: TaskSettings) -> None:
    """Refuse a profile with credentials without the key that signs them."""
    enrolment = settings.enrolment
    if enrolment.enrolment_key is not None:
        parse_key(enrolment.enrolment_key)
        return
    if enrolment.revocations is not None:
        needs = "enrolment.revocations names a list of"
    elif Profile.from_label(settings.task.profile).has_identities:
        needs = f"the profile {settings.task.profile} needs"
    else:
        return
    raise ErrorCode.BAD_SETTINGS.error(
        f"enrolment.enrolment_key is missing: {needs} an issuer",
        fix="Set it to the output of the issuer's `secagg pki enrol list`.",
    )
