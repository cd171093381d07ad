"""`python -m support.hold …` is `hemnet …` that waits before a training step, to be killed there.

HOLD_STEP   the steps done by then
HOLD_FILE   made as soon as it waits
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from hemnet.cli import main
from hemnet.data import Batch
from hemnet.training.loop import Trainer


def hold() -> None:
    step = Trainer._step

    def held(run: Trainer, batches: Iterator[Batch]) -> bool:
        if run.progress.step == int(os.environ["HOLD_STEP"]):
            Path(os.environ["HOLD_FILE"]).touch()
            time.sleep(3600)
        return step(run, batches)

    Trainer._step = held  # type: ignore[method-assign]


if __name__ == "__main__":
    hold()
    main()
