"""The fuzzing itself: it sees what it watches for, and does a few of its cases."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it watches processes in /proc")

# A process of its own: it forks.
WATCHED = """
import os, sys, time
from pathlib import Path
from support import fuzzing
fuzzing.WAIT, fuzzing.SECONDS, fuzzing.BYTES = 5.0, 0.5, 200 << 20

def bad(case):
    case.folder.joinpath("x").touch()
    way = int(case.rng.way)
    if way == 1:
        raise ValueError("a mistake")
    if way == 2:
        os.abort()
    if way == 3:
        time.sleep(60)
    if way == 4:
        bytearray(os.urandom(1) * (230 << 20))
    if way == 5:
        raise fuzzing.LostError("a file")
    if way == 6:
        end = time.process_time() + 0.6
        while time.process_time() < end:
            pass
    return 3

class Random:
    def __init__(self, text):
        self.way = text.split()[1]

fuzzing.random.Random = Random
given = Path(sys.argv[1], "given")
given.mkdir()
found = fuzzing.run_target("bad", fuzzing.Target(bad, 9), list(range(9)), given)
print(sorted((p["case"], p["kind"]) for p in found.problems), found.inputs)
print(sorted(p.name for p in given.parent.iterdir()))
"""


def test_it_sees_what_it_watches_for(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, tmp_path],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    problems, left = done.stdout.splitlines()
    kinds = ("traceback", "crash", "hang", "memory", "lost", "hang")
    expected = list(enumerate(kinds, 1))
    assert problems.startswith(str(expected)), done.stdout + done.stderr
    assert int(problems.split()[-1]) >= 9
    assert "given" in left


def test_a_few_of_its_cases(tmp_path: Path) -> None:
    targets = ("images", "labels", "settings", "weights", "archives", "models")
    done = subprocess.run(
        [sys.executable, "fuzz.py", "--count", "2", "--seed", "1", "--only", *targets],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 traceback, 0 crash, 0 hang, 0 memory, 0 lost" in done.stdout
