"""How long `hemnet app` lets people wait: a 512×512 photograph and small backbones, on a CPU.

Measured is all that the server does for one touch of the page: reading the file, the network, the
EM, drawing, and packing the pictures; not the way to the browser and what it makes of it (which
`--browser` adds: from the choice of the file to the picture on the screen).

    python benchmarks/app.py --json benchmarks/results/app.json
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import hemnet
from common import arguments, console, interleave, parse, save, show
from hemnet.app.answers import Answers, Query
from hemnet.app.explore import Explorer
from hemnet.app.limits import Limits

SIZE, BAR = 512, 2.0
NETWORKS = {
    "the demo's (test_resnet, stride 8, 32 bases)": ("test_resnet", 8, 64, 32),
    "EfficientNet-Lite0, stride 16, 64 bases": ("efficientnet_lite0", 16, 256, 64),
    "ResNet-18, stride 16, 64 bases": ("resnet18", 16, 256, 64),
}
TOUCHES = {
    "a new image": lambda these, path: upload(these, path),
    "16 iterations, η 0.2": lambda these, path: solve_again(these),
    "another iteration shown": lambda these, path: these.view("me", Query(shown=1)),
    "a pixel": lambda these, path: these.view("me", Query(place=(100, 200))),
}


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--browser", metavar="URL", help="also through a running `hemnet app`")
    args = parse(parser)
    result: dict[str, Any] = {"rounds": args.rounds, "size": SIZE, "bar": BAR, "seconds": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = make_photograph(Path(folder))
        for name, settings in NETWORKS.items():
            these = answers(Path(folder), *settings)
            upload(these, path)
            work = {touch: partial(do, these, path) for touch, do in TOUCHES.items()}
            times = interleave(work, args.rounds, name, warm_up=1)
            result["seconds"][name] = {touch: times.median(touch) for touch in TOUCHES}
        if args.browser:
            result["browser"] = in_the_browser(args.browser, path, args.rounds)
    show(
        f"seconds, {SIZE}×{SIZE}, {args.threads} threads, medians of {args.rounds} rounds; bar "
        f"{BAR:g} s",
        ("network", *TOUCHES),
        [(n, *(f"{row[touch]:.2f}" for touch in TOUCHES)) for n, row in result["seconds"].items()],
    )
    if args.browser:
        text = ", ".join(f"{name} {value:.2f} s" for name, value in result["browser"].items())
        console.print(f"through the browser: {text}")
    save(args.json, result)


def make_photograph(folder: Path) -> Path:
    """Coarse and fine detail, as JPEG."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8))
    pixels = np.asarray(coarse.resize((SIZE, SIZE), Image.Resampling.BICUBIC)).astype(np.int16)
    pixels = pixels + rng.integers(-20, 21, pixels.shape)
    path = folder / "photograph.jpg"
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return path


def answers(folder: Path, backbone: str, stride: int, channels: int, bases: int) -> Answers:
    torch.manual_seed(0)
    model = hemnet.create_model(
        "hemnet", 21, backbone, stride, channels=channels, bases=bases, variance="auto"
    )
    return Answers(Explorer(model), Limits(), folder)


def upload(these: Answers, path: Path) -> None:
    these.upload("me", path.name, path.read_bytes())


def solve_again(these: Answers) -> None:
    these.sessions.get("me").trace = None  # what was asked for last would be kept
    these.view("me", Query(16, 0.2))


def in_the_browser(url: str, path: Path, rounds: int) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    seconds: dict[str, list[float]] = {"a new image": [], "16 iterations": []}
    with sync_playwright() as playwright:
        place = shutil.which("chromium") or shutil.which("google-chrome")
        page = playwright.chromium.launch(executable_path=place).new_page()
        page.goto(url)
        page.locator("#maps figure").first.wait_for()
        for number in range(rounds):
            again = path.with_name(f"{number}.jpg")  # a name that was not there before
            again.write_bytes(path.read_bytes())
            start = time.perf_counter()
            page.locator("#upload input[type=file]").set_input_files(again)
            page.locator("#status", has_text=again.name).wait_for()
            seconds["a new image"].append(time.perf_counter() - start)
            field = page.locator("#iterations input[type=number]")
            start = time.perf_counter()
            field.fill("16")
            field.press("Enter")
            page.wait_for_function("() => document.querySelectorAll('#chart circle').length == 17")
            seconds["16 iterations"].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


if __name__ == "__main__":
    main()
