"""Measuring side by side: interleaved rounds, medians of ratios, exact memory of tensors.

The machine may be shared and noisy, so a time alone says little: all variants take turns in every
round, and a ratio is the median over rounds of the ratios within a round.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from hemnet.data import VOID

Work = Callable[[], object]
console = Console()
if not console.is_terminal:  # a log or a file: tables need not be squeezed into 80 columns
    console.width = 120


class Times:
    """Seconds of every variant in every round."""

    def __init__(self, rounds: Mapping[str, list[float]]) -> None:
        self.rounds = dict(rounds)

    def median(self, name: str) -> float:
        return statistics.median(self.rounds[name])

    def ratio(self, name: str, reference: str) -> float:
        pairs = zip(self.rounds[name], self.rounds[reference], strict=True)
        return statistics.median(a / b for a, b in pairs)


def interleave(
    variants: Mapping[str, Work],
    rounds: int,
    title: str,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """Run every variant once in every round, beginning with another one each time.

    `time.process_time` as the clock leaves out what other processes take of a busy machine.
    """
    names = list(variants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    shown = track(
        range(-warm_up, rounds), title, console=console, transient=True,
        disable=not console.is_terminal,
    )  # fmt: skip
    for i in shown:
        for name in names[i % len(names) :] + names[: i % len(names)]:
            start = clock()
            variants[name]()
            if i >= 0:
                seconds[name].append(clock() - start)
    return Times(seconds)


def peak_memory(work: Work) -> int:
    """Peak bytes of CPU tensors allocated by `work` beyond those alive before it."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None
    current = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
    return peak


def arguments(doc: str, rounds: int | None = None) -> argparse.ArgumentParser:
    """A script's parser: `--threads` and `--json`, and `--rounds` where it has rounds."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help="(%(default)s)")
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="(%(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The script's arguments; from here on torch has that many threads."""
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    return args


def show(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table; the first column is text, the others are numbers."""
    table = Table(title=title)
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


class PixelLoss:
    """Cross-entropy for a `TrainingStep` of any network that gives logits at the labels' places.

    `logits`: how it does, from (network, images, labels).
    """

    def __init__(
        self,
        weights: Tensor | None = None,
        logits: Callable[[nn.Module, Tensor, Tensor], Tensor] = lambda net, images, _: net(images),
    ) -> None:
        self.weights, self.logits = weights, logits

    def total(self, masks: Tensor) -> Tensor:
        known = masks[masks != VOID]
        return torch.tensor(len(known)) if self.weights is None else self.weights[known].sum()

    def of(
        self, model: nn.Module, images: Tensor, masks: Tensor, valid: Tensor | None = None
    ) -> Tensor:
        logits = self.logits(model, images, masks)
        return F.cross_entropy(logits, masks, self.weights, ignore_index=VOID, reduction="sum")


def matmul_gflops(times: Times, name: str, size: int) -> float:
    return 2 * size**3 / times.median(name) / 1e9


def environment() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def save(path: Path | None, result: dict[str, Any]) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"environment": environment(), **result}, indent=1) + "\n")
    console.print(f"wrote {path}", highlight=False, soft_wrap=True)
