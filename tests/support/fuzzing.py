"""Running hostile inputs in processes that are watched."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS, WAIT, BYTES = 20.0, 120.0, 2 * 2**30  # of the processor, of the clock, of memory
PART = 40  # cases of one process
KINDS = ("traceback", "crash", "hang", "memory", "lost")


class LostError(Exception):
    """A file of the user's has changed or gone, or a result is missing."""


@dataclass
class Case:
    """One attempt: a random source, an empty folder, and what was prepared for all."""

    rng: random.Random
    folder: Path
    given: Path


@dataclass
class Target:
    """`run` makes a case's inputs, uses them, and says how many they were."""

    run: Callable[[Case], int]
    cases: int


@dataclass
class Result:
    inputs: int = 0
    seconds: float = 0.0  # the slowest case
    bytes: int = 0  # the largest
    problems: list[dict[str, Any]] = field(default_factory=list)

    def counts(self) -> Counter[str]:
        return Counter(problem["kind"] for problem in self.problems)


def attempt(name: str, target: Target, number: int, given: Path) -> dict[str, Any]:
    """What came of a case; run in a process of its own."""
    folder = Path(tempfile.mkdtemp(prefix="case-", dir=given.parent))
    before = Path.cwd()
    os.chdir(folder)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    start, inputs, problem = time.process_time(), 1, None
    try:
        inputs = target.run(Case(random.Random(f"{name} {number}"), folder, given))
    except LostError as error:
        problem = {"kind": "lost", "text": str(error)}
    except BaseException:
        problem = {"kind": "traceback", "text": traceback.format_exc()}
    seconds, peak = time.process_time() - start, peak_bytes(os.getpid())
    os.chdir(before)
    shutil.rmtree(folder, ignore_errors=True)
    if problem is None and seconds > SECONDS:
        problem = {"kind": "hang", "text": f"{seconds:.1f} s"}
    if problem is None and peak > BYTES:
        problem = {"kind": "memory", "text": f"{peak / 2**30:.2f} GiB"}
    return {"inputs": inputs, "seconds": seconds, "bytes": peak, "problem": problem}


def peak_bytes(process: int) -> int:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:  # it has just ended, or this is not Linux
        return 0
    return next((int(s.split()[1]) << 10 for s in status.splitlines() if "VmHWM" in s), 0)


def processor_seconds(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_target(name: str, target: Target, numbers: list[int], given: Path) -> Result:
    result = Result()
    while numbers:
        part, numbers = numbers[:PART], numbers[PART:]
        while part:
            done, problem = run_part(name, target, part, given, result)
            if problem is not None:  # of the case after the last that is done
                result.inputs += 1
                result.problems.append(problem | {"target": name, "case": part[done]})
                done += 1
            part = part[done:]
    return result


def run_part(
    name: str, target: Target, part: list[int], given: Path, result: Result
) -> tuple[int, dict[str, str] | None]:
    """Runs cases in a child; how many were done, and what ended the child before the rest."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()
        silence()
        with os.fdopen(writing, "w") as pipe:
            for number in part:
                print(json.dumps(attempt(name, target, number, given)), file=pipe, flush=True)
        os._exit(0)
    os.close(writing)
    done, problem, since, before = 0, None, time.monotonic(), 0.0
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        text = b""
        while problem is None:
            if select.select([pipe], [], [], 0.05)[0]:
                read = pipe.read(1 << 16)
                if not read:
                    break
                text += read
                *lines, text = text.split(b"\n")
                for line in lines:
                    found = json.loads(line)
                    result.inputs += found["inputs"]
                    result.seconds = max(result.seconds, found["seconds"])
                    result.bytes = max(result.bytes, found["bytes"])
                    if found["problem"]:
                        where = {"target": name, "case": part[done]}
                        result.problems.append(found["problem"] | where)
                    done, since, before = done + 1, time.monotonic(), processor_seconds(child)
            waited, used = time.monotonic() - since, processor_seconds(child) - before
            if waited > WAIT or used > 1.5 * SECONDS:
                text = f"stopped after {waited:.0f} s, {used:.0f} s of them computing"
                problem = {"kind": "hang", "text": text}
            elif peak_bytes(child) > 1.25 * BYTES:  # before the machine suffers
                problem = {"kind": "memory", "text": "stopped"}
    if problem is not None:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if problem is None and done < len(part):
        problem = {"kind": "crash", "text": f"the process ended with {status}"}
    return done, problem


def silence() -> None:
    """What libraries in C print beside Python; tracebacks are caught, not read."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
