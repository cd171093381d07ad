"""Kill a run again and again, resume it, and compare with a run that was left alone.

    python tests/kills.py --kills 25

Every attempt is a real process, ended by a real SIGKILL: after a random time, or inside the
writing of a checkpoint, at a randomly chosen file operation.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch

from support.kills import AT_RANDOM, IN_WRITE, run_with_kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    args, flags = parser.parse_known_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        ends = run_with_kills(Path(folder), args.kills, args.seed, *flags)
    print(json.dumps(ends, indent=1))
    kills = ends[AT_RANDOM] + ends[IN_WRITE]
    print(f"{kills} kills: weights, bases, optimizer and metrics are bit-identical")


if __name__ == "__main__":
    main()
