"""A grid of training runs: a folder of run folders that many processes fill.

GRID/runs/NAME is a run folder like any other, with result.json when it is done. A grid
resumes where it stopped; a cell that fails is marked and the others continue. Every worker is a
process with one thread: networks this small use cores better as several runs than as one.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from hemnet.data.dataset import Info
from hemnet.errors import UserError
from hemnet.files import read_object, write_text
from hemnet.progress import progress_bar
from hemnet.run_folder import RunFolder
from hemnet.study.dataset_cache import CachedDataset
from hemnet.study.feature_cache import shared_cache
from hemnet.training.config import DataConfig, TrainConfig
from hemnet.training.setup import Datasets, open_datasets
from hemnet.training.signals import StopSignals

RESULT = "result.json"

CellWork = Callable[["Cell", Path, Datasets], dict[str, Any] | None]


@dataclass(frozen=True)
class Cell:
    """One run of a grid; `place` is its position in the table: column, row, seed …

    `work` does it: (cell, run folder, data sets) → results, or None when told to stop.
    """

    name: str
    config: TrainConfig
    place: dict[str, Any] = field(default_factory=dict)
    work: CellWork | None = None  # None: train, and report the last validation


@dataclass(frozen=True)
class Outcome:
    """What `run_grid` did: failed cells with their errors, and the signal that stopped it."""

    failed: dict[str, str]
    stopped_by: int | None


def run_grid(
    cells: Sequence[Cell], out: Path, *, workers: int | None = None, shard: str | None = None
) -> Outcome:
    """Run the cells that have no result yet. `shard` "I/N" takes every N-th of them, from I."""
    out.mkdir(parents=True, exist_ok=True)
    mine = of_shard(cells, shard)
    todo = [cell for cell in mine if not finished(out, cell.name)]
    done = len(mine) - len(todo)
    if done:
        print(f"{done} of {len(mine)} runs are already in {out}")
    if not todo:
        return Outcome({}, None)
    count = min(workers or free_cores(), len(todo))
    with StopSignals() as signals, progress_bar() as bar:
        task = bar.add_task(f"{count} at a time", total=len(todo))
        start, failed = time.monotonic(), {}
        for ended, (name, problem) in enumerate(outcomes(todo, out, count, signals), 1):
            bar.advance(task)
            if problem:
                failed[name] = problem
            left = (time.monotonic() - start) / ended * (len(todo) - ended)
            text = f"[{ended}/{len(todo)}] {_line(out, name, problem)}   left: {left / 60:.0f} min"
            bar.console.print(text, markup=False, highlight=False)
        return Outcome(failed, signals.requested)


def of_shard(cells: Sequence[Cell], shard: str | None) -> list[Cell]:
    """Every N-th cell from the I-th for "I/N": shards are of equal length and share nothing."""
    if shard is None:
        return list(cells)
    try:
        number, total = (int(part) for part in shard.split("/"))
    except ValueError:
        number = total = 0
    if not 1 <= number <= total:
        raise UserError(f"`shard={shard}`: expected I/N, such as 1/4 to 4/4 on four machines")
    return list(cells[number - 1 :: total])


def free_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def finished(out: Path, name: str) -> bool:
    return (read_result(out / "runs" / name) or {}).get("status") == "done"


def read_result(run: Path) -> dict[str, Any] | None:
    return read_object(run / RESULT) or None


def collect(cells: Sequence[Cell], folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Results of the cells by name, from this grid and others (shards of other machines)."""
    found: dict[str, dict[str, Any]] = {}
    for cell in cells:
        results = [read_result(folder / "runs" / cell.name) for folder in folders]
        known = [result for result in results if result is not None]
        if known:  # a run that failed on one machine may be done on another
            found[cell.name] = max(known, key=lambda result: result["status"] == "done")
    return found


def _line(out: Path, name: str, problem: str | None) -> str:
    if problem:
        return f"{name}: FAILED, {problem.splitlines()[-1]}"
    result = read_result(out / "runs" / name) or {}
    found = f"mIoU {result['miou']:.2f}" if "miou" in result else "done"
    return f"{name}: {found} in {result['seconds']:.0f} s of a core"


_STOPPED = "stopped"


class _Worker:
    """Runs one cell after the other in a process of its own, which is replaced if it dies."""

    def __init__(self, number: int, out: Path) -> None:
        self.number, self.out = number, out
        self.pool: ProcessPoolExecutor | None = None
        self.process: int | None = None  # its number
        self.stopping = False

    def run(self, cell: Cell) -> str | None:
        """Run a cell; returns the error, None if there was none."""
        try:
            if self.pool is None:
                context = multiprocessing.get_context("spawn")
                self.pool = ProcessPoolExecutor(1, context, _begin_worker, (self.number,))
                self.process = self.pool.submit(os.getpid).result()
            return self.pool.submit(run_cell, cell, self.out).result()
        except BrokenProcessPool:
            self.pool = self.process = None
            problem = "its process was killed: is there enough memory?"
            if not self.stopping:
                _write(self.out, cell, {"status": "failed", "error": problem})
            return problem

    def stop(self) -> None:
        """Tell the process to stop: a training saves a checkpoint first."""
        self.stopping = True
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGTERM)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()


def outcomes(
    cells: Sequence[Cell], out: Path, count: int, signals: StopSignals
) -> Iterator[tuple[str, str | None]]:
    """Yield (name, error or None) as cells end; after a signal no more are started."""
    workers = [_Worker(number, out) for number in range(count)]
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def run(cell: Cell) -> str | None:
        worker = idle.get()
        problem = _STOPPED if signals.requested is not None else worker.run(cell)
        idle.put(worker)
        return problem

    threads = ThreadPoolExecutor(count)
    waiting: dict[Future[str | None], Cell] = {}
    try:
        with _one_thread_each():
            waiting |= {threads.submit(run, cell): cell for cell in cells}
            while waiting:
                ended, _ = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                if signals.requested is not None:
                    for worker in workers:
                        worker.stop()
                for future in ended:
                    cell, problem = waiting.pop(future), future.result()
                    if problem is None or signals.requested is None:
                        yield cell.name, problem
    finally:
        if waiting:  # whoever asked has left
            for worker in workers:
                worker.stop()
        threads.shutdown(cancel_futures=True)
        for worker in workers:
            worker.close()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started inside use one thread each in their libraries."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ.update(before)


def _begin_worker(number: int) -> None:
    import torch

    # Ctrl-C reaches every process of a terminal; the grid itself tells its workers to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    if torch.cuda.is_available():  # workers share the GPUs evenly
        torch.cuda.set_device(number % torch.cuda.device_count())


_opened: dict[str, Datasets] = {}  # of this process


def _datasets(config: DataConfig) -> Datasets:
    """The data sets of a cell; opened once while successive cells share them."""
    key = repr(config)
    if key not in _opened:
        _opened.clear()
        train_set, val_set = open_datasets(config)
        _opened[key] = CachedDataset(train_set), None if val_set is None else CachedDataset(val_set)
    return _opened[key]


def run_cell(cell: Cell, out: Path) -> str | None:
    """Run one cell to its end; returns the error, None if there was none."""
    run, start = out / "runs" / cell.name, time.process_time()
    if finished(out, cell.name):  # by another process that shares the folder
        return None
    try:
        result = (cell.work or _train_cell)(cell, run, _datasets(cell.config.data))
        if result is None:
            return _STOPPED
        seconds = time.process_time() - start
        _write(out, cell, {"status": "done", **result, "seconds": seconds})
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        _write(out, cell, {"status": "failed", "error": text, "trace": traceback.format_exc()})
        return text
    return None


def _train_cell(cell: Cell, run: Path, data: Datasets) -> dict[str, Any] | None:
    from hemnet.training.loop import train

    cache = shared_cache()
    cache.expect(cell.config)
    result = train(cell.config, run, resume=True, quiet=True, data=data, prepare=cache.attach)
    return _summary(run, data[0].info) if result.stopped_by is None else None


def _summary(run: Path, info: Info) -> dict[str, Any]:
    """The last validation of a run."""
    last = RunFolder(run).read_metrics("validation")[-1]
    context = [last["iou"][info.classes[k]] for k in info.context_classes]
    known = [value for value in context if value is not None]
    return {
        "miou": last["miou"],
        "context_miou": sum(known) / len(known) if known else None,
        "pixel_accuracy": last["pixel_accuracy"],
        "iou": last["iou"],
        "step": last["step"],
    }


def _write(out: Path, cell: Cell, content: dict[str, Any]) -> None:
    run = out / "runs" / cell.name
    run.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"name": cell.name, **cell.place, **content}, indent=1)
    write_text(run / RESULT, text + "\n", durable=True)
