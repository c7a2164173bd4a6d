"""An executor that runs calls when the test says so: for "not before it is durable"."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

_Result = TypeVar("_Result")
_Parameters = ParamSpec("_Parameters")


class HeldExecutor(Executor):
    """Holds every call back while `is_holding`; else runs it at once.

    Attributes:
        is_holding: Whether calls are held back.
        failure: Raised instead of the next calls, if set.
    """

    def __init__(self) -> None:
        self.is_holding = False
        self.failure: BaseException | None = None
        self._held: list[Callable[[], None]] = []

    @property
    def held(self) -> int:
        """How many calls wait."""
        return len(self._held)

    def submit(
        self,
        fn: Callable[_Parameters, _Result],
        /,
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> Future[_Result]:
        """Run the call now or later."""
        future: Future[Any] = Future()

        def call() -> None:
            try:
                if self.failure is not None:
                    raise self.failure  # noqa: TRY301 - stands for the call's own
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - belongs to the caller
                future.set_exception(error)

        if self.is_holding:
            self._held.append(call)
        else:
            call()
        return future

    def release(self) -> None:
        """Run what was held back, in order, and hold nothing any more."""
        self.is_holding = False
        held, self._held = self._held, []
        for call in held:
            call()
