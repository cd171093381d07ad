"""Give the program thousands of hostile inputs, and count what must not happen.

    python tests/fuzz.py                          all targets, about 12,000 inputs
    python tests/fuzz.py --only images --count 40
    python tests/fuzz.py --only models --case 17  one case again, with its traceback

Every case follows from its target and number alone. Cases run in processes of their own, which
are watched: bars are 0 tracebacks and crashes, 0 hangs (over 20 s of computing, or two minutes of
anything), 0 over 2 GB, 0 files lost.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from support.fuzzing import KINDS, Result, attempt, run_target


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="TARGET")
    parser.add_argument("--count", type=int, help="cases of each target, instead of its own number")
    parser.add_argument("--seed", type=int, default=0, help="other cases (%(default)s)")
    parser.add_argument("--case", type=int, help="one case in this process, for its traceback")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()

    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    import torch

    from support.fuzz_targets import TARGETS, prepare

    torch.set_num_threads(1)
    chosen = {name: TARGETS[name] for name in args.only or TARGETS}
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory(prefix="hemnet-fuzz-") as place:
        given = Path(place) / "given"
        child = os.fork()  # autograd's threads must not be there when cases fork
        if child == 0:
            prepare(given, set(chosen))
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit("what cases need could not be prepared")
        if args.case is not None:
            ((name, target),) = chosen.items()
            found = attempt(name, target, args.case, given)
            print(found.pop("problem") or "no problem", found, sep="\n")
            return
        print(f"{'target':<12}{'inputs':>8}{'slowest':>10}{'largest':>10}  problems", flush=True)
        for name, target in chosen.items():
            first = args.seed * 1_000_000
            numbers = list(range(first, first + (args.count or target.cases)))
            found = results[name] = run_target(name, target, numbers, given)
            counts = ", ".join(f"{n} {kind}" for kind, n in found.counts().items()) or "none"
            print(
                f"{name:<12}{found.inputs:>8}{found.seconds:>8.1f} s"
                f"{found.bytes / 2**30:>6.2f} GiB  {counts}",
                flush=True,
            )
            for problem in found.problems[:5]:
                last = problem["text"].strip().splitlines()[-1][:150]
                print(f"  case {problem['case']}: {problem['kind']}: {last}", flush=True)
    total = sum(found.inputs for found in results.values())
    counts = sum((found.counts() for found in results.values()), Counter())
    print(f"{total} inputs: " + ", ".join(f"{counts[kind]} {kind}" for kind in KINDS))
    if args.json:
        content = {name: asdict(found) for name, found in results.items()}
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    sys.exit(1 if counts else 0)


if __name__ == "__main__":
    main()
