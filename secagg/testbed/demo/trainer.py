"""The demo's aggregator process: `secagg server`, with a model for a payload.

Run as ``python -m secagg.testbed.demo.trainer DIRECTORY``.

Rule 1: it is the product's own server; only its payload and its use of a sum are the
        demo's.
Rule 2: it sees no picture and no update of a single client.
Rule 3: a sum that is delivered twice changes the model once: models are kept by session
        number.
"""

import asyncio
import os
import sys
from pathlib import Path

import numpy as np

from secagg.config import load_server_settings
from secagg.errors import SecAggError
from secagg.runtime.vector_files import write_vector
from secagg.server.service import Observer, plan_task, serve
from secagg.server.session.events import SessionProgress
from secagg.server.task.outputs import ReleasedSum
from secagg.testbed.child_process import say, say_failed
from secagg.testbed.demo.layout import DemoLayout
from secagg.testbed.demo.model import SoftmaxModel


class _Trainer:
    """Hands out the model and improves it by each sum."""

    def __init__(self, layout: DemoLayout) -> None:
        self._layout = layout
        self._model = SoftmaxModel.initial()

    def payload(self, _: int) -> bytes:
        """Return the model as it stands."""
        return self._model.to_bytes()

    async def take_sum(self, released: ReleasedSum) -> None:
        """Improve the model by one noisy sum."""
        number = released.session_number
        path = self._layout.model(number)
        if not path.exists():
            improved = self._model.improved_by(released.values, released.inputs)
            write_vector(self._layout.residues(number), released.residues)
            write_vector(path, improved.weights)
        self._model = SoftmaxModel(np.load(path, allow_pickle=False))
        noise = released.receipt.noise
        say(
            "step",
            session=number,
            survivors=released.inputs,
            share_holders=0 if noise is None else noise.share_holders,
            removed=[] if noise is None else list(noise.removed),
            l2_clip=released.l2_clip,
            fitted=released.fitted,
            standard_error=released.standard_error,
        )


def _tell(progress: SessionProgress) -> None:
    say(
        "progress",
        session=progress.session_number,
        phase=progress.phase,
        round=progress.round.name,
        joined=progress.joined,
        answered=progress.answered,
        expected=progress.expected,
        upload_bytes=progress.upload_bytes,
        dropped=[
            {"name": lost.identity, "round": lost.round.name, "reason": lost.reason}
            for lost in progress.dropped
        ],
        reason=progress.reason,
    )


def main(directory: Path) -> int:
    """Serve the demo's task to its end."""
    layout = DemoLayout(directory)
    try:
        settings = load_server_settings(
            layout.server_settings, environment=os.environ
        ).settings
        prepared = asyncio.run(plan_task(settings))
        trainer = _Trainer(layout)
        observer = Observer(
            listening=lambda address: say("listening", address=str(address)),
            progress=_tell,
            nothing_to_do=lambda sentence: say("nothing_to_do", message=sentence),
        )
        served = asyncio.run(
            serve(
                settings,
                prepared,
                payload=trainer.payload,
                on_sum=trainer.take_sum,
                observer=observer,
            )
        )
    except SecAggError as error:
        say_failed(error)
        return 1
    say("done", receipts=[receipt.to_dict() for receipt in served.receipts])
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
