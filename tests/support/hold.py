"""`python -m support.hold …` is `hemnet …` that waits before a training step, to be killed there.

HOLD_STEP   the steps that this process has done by then
HOLD_FILE   made as soon as it waits
"""

import os
import time
from pathlib import Path

from hemnet.cli import main
from support.steps import at_step


def hold() -> None:
    Path(os.environ["HOLD_FILE"]).touch()
    time.sleep(3600)


if __name__ == "__main__":
    with at_step(int(os.environ["HOLD_STEP"]), hold):
        main()
