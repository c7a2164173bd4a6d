"""The demo's aggregator process: `secagg server`, with a model for a payload.

Run as ``python -m secagg.testbed.demo.trainer DIRECTORY``.

Rule 1: it sees no picture and no update of a single client.
Rule 2: a sum that is delivered twice changes the model once: models are kept by session
        number.
"""

import sys
from pathlib import Path

import numpy as np

from secagg.runtime.vector_files import write_vector
from secagg.server.task.outputs import ReleasedSum
from secagg.testbed.aggregator import serve_run
from secagg.testbed.child_process import report, run_process
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

    async def apply_sum(self, released: ReleasedSum) -> None:
        """Improve the model by one noisy sum."""
        number = released.session_number
        path = self._layout.model(number)
        if not path.exists():
            improved = self._model.after_step(released.values, released.inputs)
            write_vector(self._layout.residues(number), released.residues)
            write_vector(path, improved.weights)
        self._model = SoftmaxModel(np.load(path, allow_pickle=False))
        noise = released.receipt.noise
        report(
            "step",
            session=number,
            survivors=released.inputs,
            share_holders=0 if noise is None else noise.share_holders,
            removed=[] if noise is None else list(noise.removed),
            l2_clip=released.l2_clip,
            fitted=released.fitted,
            standard_error=released.standard_error,
        )


async def train(layout: DemoLayout) -> None:
    """Serve the demo's task to its end."""
    trainer = _Trainer(layout)
    await serve_run(
        layout.settings(), take_sum=trainer.apply_sum, payload=trainer.payload
    )


if __name__ == "__main__":
    sys.exit(run_process(train(DemoLayout(Path(sys.argv[1])))))
