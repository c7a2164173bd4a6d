"""The operator of a world, who adds, pauses and stops tasks during a run.

Rule 1: an unacknowledged command is repeated to any aggregator that answers.
Rule 2: what was acknowledged is on the disk, at that moment and ever after.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from secagg.errors import ErrorCode, SecAggError
from secagg.server.supervisor import TaskSupervisor
from secagg.storage.rows import TaskState
from secagg_testing.world.aggregators import Aggregators
from secagg_testing.world.dice import Dice
from secagg_testing.world.plan import Action, Word
from secagg_testing.world.tasks import WorldTask, settings_of
from secagg_testing.world.witness import Witness

# Until it is tried again, at the same aggregator or another one.
_AGAIN_SECONDS: Final = 3.0
# How often the operator looks whether a task has paused itself.
_MIND_SECONDS: Final = 900.0

_Act = Callable[[TaskSupervisor], Awaitable[object]]


class Operator:
    """Sends commands to aggregators until they are acknowledged.

    Args:
        aggregators: Of the world.
        witness: Has the content of the disk.
        dice: Choose the aggregator.
    """

    def __init__(self, aggregators: Aggregators, witness: Witness, dice: Dice) -> None:
        self._aggregators = aggregators
        self._witness = witness
        self._dice = dice
        self._pausing: set[str] = set()

    async def act(self, action: Action, task: WorldTask) -> None:
        """Carry out one command, and check its effect."""
        match action.word:
            case Word.ADD:
                settings = settings_of(task.name, task.sums)
                await self._until_done(
                    task, TaskState.RUNNING, lambda keeper: keeper.add(settings)
                )
            case Word.PAUSE:
                self._pausing.add(task.name)
                await self._until_done(
                    task,
                    TaskState.PAUSED,
                    lambda keeper: keeper.pause(task.name, reason="wait"),
                )
                await asyncio.sleep(action.seconds)
                await self._resume(task)
                self._pausing.discard(task.name)
            case Word.STOP:
                await self.stop(task)

    async def mind(self, tasks: Sequence[WorldTask]) -> None:
        """Resume tasks that paused after failures, repeatedly."""
        while True:
            await asyncio.sleep(_MIND_SECONDS)
            for task in tasks:
                words = self._witness.words_of(task.name)
                is_paused = words and words[-1] is TaskState.PAUSED
                if is_paused and task.name not in self._pausing:
                    await self._resume(task)

    async def _resume(self, task: WorldTask) -> None:
        await self._until_done(
            task, TaskState.RUNNING, lambda keeper: keeper.resume(task.name)
        )

    async def stop(self, task: WorldTask) -> None:
        """Stop a task."""
        await self._until_done(
            task,
            TaskState.STOPPED,
            lambda keeper: keeper.stop(task.name, reason="enough"),
        )

    async def _until_done(self, task: WorldTask, state: TaskState, act: _Act) -> None:
        words = self._witness.words_of(task.name)
        before = max(0, len(words) - 1)
        while not await self._is_done(task, act):  # noqa: ASYNC110 - nothing notifies
            await asyncio.sleep(_AGAIN_SECONDS)
        if not {state, TaskState.STOPPED} & set(words[before:]):
            self._witness.fault(
                f"the operator was told that {task.name} is {state}, and on the disk "
                f"it was {words[before:]} since"
            )

    async def _is_done(self, task: WorldTask, act: _Act) -> bool:
        """Send it to one aggregator; return whether it was acknowledged."""
        alive = [
            (machine, keeper)
            for machine, keeper in self._aggregators.keepers.items()
            if not machine.is_gone
        ]
        if not alive:
            return False
        machine, keeper = self._dice.choice(alive)
        asking = machine.start(_asked(keeper, act))
        ends: set[asyncio.Future[Any]] = {asking, machine.death}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if machine.is_gone or asking.cancelled():
            return False
        refused = asking.result()
        self._witness.write("operator", f"{task.name}: {refused or 'acknowledged'}")
        # It was heard before, and the reply was lost; or there is nothing left to say.
        return refused is None or refused.code in {
            ErrorCode.BAD_SETTINGS,
            ErrorCode.TASK_OVER,
        }


async def _asked(keeper: TaskSupervisor, act: _Act) -> SecAggError | None:
    try:
        await act(keeper)
    except SecAggError as error:
        return error
    return None
