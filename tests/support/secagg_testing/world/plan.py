"""The plan of a seed: participants, tasks, and faults with their times."""

from dataclasses import dataclass, replace
from enum import StrEnum, unique
from typing import Final

from secagg.protocol.messages import Round
from secagg_testing.world.dice import Dice
from secagg_testing.world.network import Weather
from secagg_testing.world.tasks import Kind, WorldTask

# After so many steps nothing goes wrong any more, and all parties should end.
LAST_STEP: Final = 1500
# What a task is, by lot: large cohorts cost the time of several small ones.
_KINDS: Final = (
    *(Kind.EXACT, Kind.WEIGHTLESS, Kind.SIGNED) * 6,
    *(Kind.LADDER, Kind.DRAWN) * 2,
    *(Kind.RING, Kind.FILED),
)

# Mostly none; else fewer than a sum may end, or all that compute it.
_POISON: Final = (*(0,) * 14, 1, 2, 99)
_WITH_COLLUDERS: Final = frozenset({Kind.WEIGHTLESS, Kind.LADDER, Kind.RING})
# The tasks of an operator: the second one is stopped, the third one is added.
FIRST, SECOND, THIRD = "first", "second", "third"


@unique
class Fault(StrEnum):
    """What goes wrong."""

    KILL_SERVER = "a server is killed"
    STOP_SERVER = "a server stands still"
    RESTART_SERVER = "a server is restarted in peace"
    DRAIN_SERVER = "a server is drained, and restarted after a while"
    FILL_SERVER_DISK = "the servers' disk is full"
    BACK_UP_SERVER = "the servers' state is backed up"
    RESTORE_SERVER = "the servers are killed, and their state is restored"
    KILL_CLIENT = "a client is killed"
    BACK_UP_CLIENT = "a client's state is backed up"
    RESTORE_CLIENT = "a client is killed, and its state is restored"
    STOP_CLIENT = "a client stands still"
    FILL_CLIENT_DISK = "a client's disk is full"
    CUT_OFF_CLIENT = "a client is cut off"
    CUT_OFF_ALL = "all links are cut off"
    REVOKE_CLIENT = "a client's certificate is taken back"
    CUT_OFF_SERVER = "a server is cut off from its store"
    RESTART_DATABASE = "all servers are cut off from their store"
    STOP_SERVERS = "all servers stand still"
    FILL_OUTPUT_DISK = "a server has no room for sums"

    @property
    def meets_client(self) -> bool:
        """Whether it meets one client."""
        return "client" in self


@unique
class Word(StrEnum):
    """An operator's command for a task."""

    ADD = "add"
    PAUSE = "pause"
    STOP = "stop"


# What is restored was backed up before.
_BACKED_UP: Final = {
    Fault.RESTORE_SERVER: Fault.BACK_UP_SERVER,
    Fault.RESTORE_CLIENT: Fault.BACK_UP_CLIENT,
}


# What happens between servers and the database that keeps their store.
_ON_LINKS: Final = (Fault.CUT_OFF_SERVER, Fault.RESTART_DATABASE)
# What happens to the disks that an operator's sums are written to.
_ON_OUTPUTS: Final = (Fault.FILL_OUTPUT_DISK,)
# What leaves no server to answer.
_ON_ALL: Final = (Fault.STOP_SERVERS,)


@dataclass(frozen=True, slots=True)
class Incident:
    """One thing that goes wrong.

    Attributes:
        step: At which step of the run.
        fault: What.
        client: Which one it meets; of fewer servers, modulo their number.
        seconds: How long it lasts.
    """

    step: int
    fault: Fault
    client: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Action:
    """A command of an operator while the aggregators run.

    Attributes:
        step: At which step of the run.
        word: What.
        task: Of which task.
        seconds: After how long a paused one is resumed.
    """

    step: int
    word: Word
    task: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Direction:
    """The one restart of a directed world.

    Attributes:
        round: Inside which round of the first session.
        losses: How many clients are lost: from this round on, or from that of the
            masked inputs if that comes earlier.
        restarts_server: The aggregator is restarted when the round is open, else a
            client when it has entered the round.
        after_message: The aggregator is restarted when it has a message of the round.
        after_chunk: A client is restarted when the aggregator has acknowledged a part
            of its upload, and not all.
        server: Name of the aggregator.
    """

    round: Round
    losses: int
    restarts_server: bool
    after_message: bool = False
    after_chunk: bool = False
    server: str = "server-0"

    def __str__(self) -> str:
        who = "the server" if self.restarts_server else "a client"
        when = ", after a message" if self.after_message else ""
        when += ", between chunks" if self.after_chunk else ""
        return (
            f"{who} is restarted in {self.round.name}{when}, {self.losses} clients lost"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """A run before it begins.

    Attributes:
        seed: The seed of all draws.
        tasks: What is summed; several where aggregators have an operator.
        weather: Of the network.
        job_seconds: Longest time that threads take, mostly.
        disk_refusal: How often a transaction is refused.
        disk_lost_replies: How often one succeeds and its reply is lost.
        read_refusal: How often a store or a store of uploads refuses to be read.
        hint_loss: How often a notification between servers is lost.
        chunk_bytes: In chunks of what size clients upload; None for the product's,
            which no vector of a world fills.
        is_shuffled: Whether callbacks run in any order.
        servers: How many share the work.
        is_service: Clients run as services do, which end only with their task.
        has_certificates: Clients show certificates, which may be taken back.
        corrupt: Clients whose secrets the adversary has.
        poison: How many processes the first sum kills.
        actions: Commands of an operator.
        incidents: What goes wrong, in order.
        direction: What goes wrong at a chosen place; None where chance chooses.
    """

    seed: int
    tasks: tuple[WorldTask, ...]
    weather: Weather
    job_seconds: float
    disk_refusal: float
    disk_lost_replies: float
    read_refusal: float
    hint_loss: float
    chunk_bytes: int | None
    is_shuffled: bool
    servers: int
    is_service: bool
    has_certificates: bool
    corrupt: frozenset[int]
    poison: int
    actions: tuple[Action, ...]
    incidents: tuple[Incident, ...]
    direction: Direction | None = None

    @property
    def kind(self) -> Kind:
        """What the task is; of several, the first."""
        return self.tasks[0].kind

    @property
    def clients(self) -> tuple[str, ...]:
        """Those of all tasks, by name."""
        return tuple(name for task in self.tasks for name in task.clients)

    @property
    def is_operated(self) -> bool:
        """Whether aggregators take tasks from files, and from an operator."""
        return self.kind is Kind.FILED

    @property
    def is_fair(self) -> bool:
        """Whether nothing goes wrong at all, nor takes longer than any party waits."""
        weather = self.weather
        chances = (
            *(weather.loss, weather.straggle),
            *(self.disk_refusal, self.disk_lost_replies, self.read_refusal),
            self.poison,
        )
        goes_wrong = self.incidents or self.direction is not None or any(chances)
        return not goes_wrong and self.job_seconds < 1.0

    @classmethod
    def directed(cls, kind: Kind, direction: Direction) -> "Plan":
        """Return a world in which one process is restarted and nothing else is wrong.

        Args:
            kind: Of its one task.
            direction: Where.
        """
        return cls(
            seed=0,
            tasks=(WorldTask("a-task", kind),),
            weather=Weather(),
            job_seconds=0.001,
            disk_refusal=0.0,
            disk_lost_replies=0.0,
            read_refusal=0.0,
            hint_loss=0.0,
            chunk_bytes=4 if direction.after_chunk else None,
            is_shuffled=False,
            servers=1,
            is_service=False,
            has_certificates=False,
            corrupt=frozenset(),
            poison=0,
            actions=(),
            incidents=(),
            direction=direction,
        )

    @classmethod
    def of(cls, seed: int) -> "Plan":
        """Return the plan of a seed."""
        dice = Dice(seed, "plan")
        kind = dice.choice(_KINDS)
        weather = Weather(
            delay_seconds=dice.choice((0.001, 0.05, 2.0)),
            loss=dice.choice((0.0, 0.0, 0.02, 0.1)),
            hush=dice.choice((0.0, 0.3)),
            echo=dice.choice((0.0, 0.1)),
            straggle=dice.choice((0.0, 0.01)),
        )
        is_operated = kind is Kind.FILED
        tasks = _filed_tasks() if is_operated else (WorldTask("a-task", kind),)
        clients = sum(each.kind.clients for each in tasks)
        has_certificates = dice.chance(0.1)
        count = dice.choice((0, 1, 1, 2, 3, 5, 8))
        incidents = [
            _incident(dice, clients, _faults(kind, has_certificates=has_certificates))
            for _ in range(count)
        ]
        incidents += [
            replace(each, step=1 + dice.below(each.step), fault=_BACKED_UP[each.fault])
            for each in incidents
            if each.fault in _BACKED_UP
        ]
        # Dice of their own: what else a seed stands for does not depend on them.
        links = Dice(seed, "links")
        incidents += [
            _incident(links, clients, _ON_LINKS)
            for _ in range(links.choice((0, 0, 0, 1, 2, 4)))
        ]
        outages = Dice(seed, "silence")
        incidents += [
            _incident(outages, clients, _ON_ALL)
            for _ in range(outages.choice((0, 0, 0, 1)))
        ]
        outputs = Dice(seed, "outputs")
        incidents += [
            _incident(outputs, clients, _ON_OUTPUTS)
            for _ in range(outputs.choice((0, 1, 3)) if is_operated else 0)
        ]
        return cls(
            seed=seed,
            tasks=tasks,
            weather=weather,
            job_seconds=dice.choice((0.0, 0.001, 0.1, 3.0)),
            disk_refusal=dice.choice((0.0, 0.0, 0.01, 0.05)),
            disk_lost_replies=dice.choice((0.0, 0.0, 0.01, 0.05)),
            hint_loss=links.choice((0.0, 0.0, 0.3, 1.0)),
            chunk_bytes=links.choice((None, None, 4)),
            read_refusal=links.choice((0.05, 0.01, 0.0, 0.0, 0.0)),
            is_shuffled=dice.chance(0.7),
            servers=dice.choice((1, 1, 2, 3)),
            is_service=dice.chance(0.2),
            has_certificates=has_certificates,
            corrupt=frozenset({dice.below(clients)})
            if kind in _WITH_COLLUDERS and dice.chance(0.5)
            else frozenset(),
            poison=Dice(seed, "poison").choice(_POISON),
            actions=_actions(dice) if is_operated else (),
            incidents=tuple(sorted(incidents, key=lambda each: each.step)),
        )

    def __str__(self) -> str:
        weather = self.weather
        lines = [
            f"seed {self.seed}: {self.servers} servers, {len(self.clients)} clients, "
            f"{len(self.tasks)} tasks, {self.kind}"
            + (", clients are services" if self.is_service else "")
            + (f", corrupt {sorted(self.corrupt)}" if self.corrupt else "")
            + (f", the first sum ends {self.poison} servers" if self.poison else ""),
            (
                f"  network: {weather.delay_seconds} s a way, lost {weather.loss}, "
                f"silent {weather.hush}, twice {weather.echo}, late {weather.straggle}"
            ),
            (
                f"  threads: {self.job_seconds} s; disks: refuse {self.disk_refusal}, "
                f"fall silent {self.disk_lost_replies}, "
                f"are not read {self.read_refusal}; hints lost {self.hint_loss}; "
                + ("any order" if self.is_shuffled else "asyncio's order")
                + (f"; chunks of {self.chunk_bytes} bytes" if self.chunk_bytes else "")
            ),
        ]
        if self.direction is not None:
            lines.append(f"  {self.direction}")
        lines += [
            f"  step {each.step}: the operator says: {each.word} {each.task}"
            for each in self.actions
        ]
        lines += [
            f"  step {each.step}: {each.fault} (number {each.client}), "
            f"{each.seconds:.1f} s"
            for each in self.incidents
        ]
        return "\n".join(lines)


def _filed_tasks() -> tuple[WorldTask, ...]:
    """Return two tasks of files, and a third one that is added."""
    return (
        WorldTask(FIRST, Kind.FILED, first=0),
        WorldTask(SECOND, Kind.FILED, first=3),
        WorldTask(THIRD, Kind.FILED, first=6, sums=1),
    )


def _actions(dice: Dice) -> tuple[Action, ...]:
    """Return what an operator says: a task is added, one paused, one stopped."""

    def step() -> int:
        return 1 + dice.below(dice.choice((100, 400)))

    pause = dice.choice((20.0, 300.0, 1800.0)) * (0.5 + dice.uniform())
    actions = [
        Action(step(), Word.ADD, THIRD),
        Action(step(), Word.PAUSE, FIRST, pause),
        Action(step(), Word.STOP, SECOND),
    ]
    return tuple(sorted(actions, key=lambda each: each.step))


def _faults(kind: Kind, *, has_certificates: bool) -> tuple[Fault, ...]:
    """Return what may go wrong."""
    without = {*_BACKED_UP.values(), *_ON_LINKS, *_ON_OUTPUTS, *_ON_ALL}
    if not has_certificates:
        without.add(Fault.REVOKE_CLIENT)
    if kind is Kind.FILED:
        # What an operator said since the backup would have to be said again.
        without.add(Fault.RESTORE_SERVER)
    return tuple(each for each in Fault if each not in without)


def _incident(dice: Dice, clients: int, faults: tuple[Fault, ...]) -> Incident:
    return Incident(
        step=1 + dice.below(dice.choice((60, 300, 900))),
        fault=dice.choice(faults),
        client=dice.below(clients),
        seconds=dice.choice((0.5, 10.0, 70.0, 400.0)) * (0.5 + dice.uniform()),
    )
