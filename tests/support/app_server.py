"""A running `hemnet app` for the tests, and a browser to look at it with."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

import hemnet
from hemnet.data.scenes import SCENES

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ELSEWHERE = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "C:/Program Files/Google/Chrome/Application/chrome.exe",
    "C:/Program Files (x86)/Google/Chrome/Application/chrome.exe",
)


def find_browser() -> str | None:
    """The machine's own Chromium or Chrome."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    return found or next((place for place in ELSEWHERE if Path(place).exists()), None)


def save_model(folder: Path) -> Path:
    """A network that knows nothing, and answers at once."""
    torch.manual_seed(4)
    model = hemnet.create_model(
        *("hemnet", len(SCENES.classes), "test_resnet", 8),
        channels=16, bases=8, variance="auto", gain=0.3, classes=SCENES.classes,
        palette=SCENES.palette,
    )  # fmt: skip
    torch.nn.init.normal_(model.head.classifier[-1].weight, std=4)  # several classes an image
    with torch.no_grad():
        model.train()(torch.randn(4, 3, 64, 64))  # bases and variance have seen something
    return model.save_pretrained(folder)


@dataclass(frozen=True)
class Server:
    url: str
    port: int
    process: subprocess.Popen[bytes]
    folder: Path  # its temporary files
    work: Path  # its working folder
    model: Path
    log: Path


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Server]:
    """`hemnet app` as a program of its own, ended by Ctrl-C."""
    model = save_model(folder / "model")
    work, scratch = folder / "work", folder / "tmp"
    work.mkdir()
    scratch.mkdir()
    (work / "secret.txt").write_text("the secret of the working folder")
    paths = [str(Path(hemnet.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    log = folder / "log.txt"  # not a pipe, which would fill up and make it wait
    with log.open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "hemnet", "app", str(model), "--port", "0", *options],
            cwd=work,
            env=dict(
                os.environ,
                PYTHONPATH=os.pathsep.join(paths),
                **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch)),
            ),
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())):
        assert process.poll() is None, "hemnet app has ended: " + log.read_text()
        time.sleep(0.1)
    (own,) = scratch.glob("hemnet-app-*")
    try:
        yield Server(found[0], int(found[1]), process, own.resolve(), work, model, log)
    finally:
        windows = os.name == "nt"  # has no Ctrl-C for a single process
        process.send_signal(signal.SIGTERM if windows else signal.SIGINT)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    if not windows:
        assert process.returncode == 0, log.read_text()
        assert not own.exists(), "the temporary folder is left"
