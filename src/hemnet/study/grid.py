"""A grid of training runs: a folder of run folders that many processes fill.

GRID/runs/NAME is a run folder like any other, with result.json when it is done. A grid goes on
where it stopped; a cell that fails is marked and the rest goes on. Every worker is a process with
one thread: for networks this small, cores are better used by several runs than by one.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from hemnet.data.dataset import Info, SegmentationDataset
from hemnet.errors import UserError
from hemnet.files import read_object, write_text
from hemnet.progress import progress_bar
from hemnet.run_folder import RunFolder
from hemnet.study.feature_cache import shared_store
from hemnet.training.config import TrainConfig
from hemnet.training.signals import StopSignals

RESULT = "result.json"
Datasets = tuple[SegmentationDataset, SegmentationDataset | None]
Work = Callable[["Cell", Path, Datasets], dict[str, Any] | None]


@dataclass(frozen=True)
class Cell:
    """One run of a grid; `place` says where in the table: column, row, seed …

    `work` does it: (cell, run folder, data sets) → results, or None when told to stop.
    """

    name: str
    config: TrainConfig
    place: dict[str, Any] = field(default_factory=dict)
    work: Work | None = None  # None: train, and report the last validation


@dataclass(frozen=True)
class Outcome:
    """What `run_grid` did: cells that failed, and the signal that stopped it, if any."""

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
        pool = WorkerPool(count, out)
        start, ended, failed = time.monotonic(), 0, {}
        try:
            for name, problem in pool.run(todo, signals):
                ended += 1
                bar.advance(task)
                if problem:
                    failed[name] = problem
                left = (time.monotonic() - start) / ended * (len(todo) - ended)
                text = _line(out, name, problem)
                bar.console.print(
                    f"[{ended}/{len(todo)}] {text}   left: {left / 60:.0f} min",
                    markup=False,
                    highlight=False,
                )
        finally:
            pool.close()
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
        raise UserError(f"--shard {shard}: expected I/N, such as 1/4 to 4/4 on four machines")
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


class WorkerPool:
    """Worker processes, each with one cell at a time; one that dies takes only its cell along."""

    def __init__(self, count: int, out: Path) -> None:
        self.out, self.context = out, multiprocessing.get_context("spawn")
        self.workers: dict[Connection, Any] = {}
        self.count = count

    def run(self, cells: Sequence[Cell], signals: StopSignals) -> Iterator[tuple[str, str | None]]:
        """Yield (name, problem or None) as cells end; stops handing out when a signal came."""
        waiting = list(cells)[::-1]
        busy: dict[Connection, Cell] = {}
        while (waiting and signals.requested is None) or busy:
            while len(busy) < self.count and waiting and signals.requested is None:
                pipe = self._idle(busy)
                busy[pipe] = waiting.pop()
                pipe.send((busy[pipe], str(self.out)))
            ready = [pipe for pipe in wait(list(busy), timeout=0.5) if isinstance(pipe, Connection)]
            if signals.requested is not None:
                for pipe in busy:
                    self.workers[pipe].terminate()  # the runs save, then end
            for pipe in ready:
                cell = busy.pop(pipe)
                try:
                    problem = pipe.recv()
                except (EOFError, ConnectionError):
                    process = self.workers.pop(pipe)
                    process.join()
                    problem = f"its process ended with code {process.exitcode}"
                    if signals.requested is None:
                        _write(self.out, cell, {"status": "failed", "error": problem})
                if problem == _STOPPED or (signals.requested is not None and problem):
                    continue
                yield cell.name, problem

    def _idle(self, busy: dict[Connection, Cell]) -> Connection:
        for pipe in self.workers:
            if pipe not in busy:
                return pipe
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_work, args=(theirs, len(self.workers)), daemon=True)
        before = {key: os.environ.get(key) for key in _ONE_THREAD}
        os.environ.update(_ONE_THREAD)  # read when the child's libraries are loaded
        try:
            process.start()
        finally:
            for key, value in before.items():
                os.environ.pop(key) if value is None else os.environ.update({key: value})
        theirs.close()
        self.workers[ours] = process
        return ours

    def close(self) -> None:
        for pipe, process in self.workers.items():
            pipe.close()  # the worker's recv ends
            process.join(timeout=60)
            if process.is_alive():
                process.terminate()


_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_STOPPED = "stopped"


def _work(pipe: Connection, number: int) -> None:
    """A worker's life: a cell comes, its outcome goes back, until the pipe closes."""
    import torch

    # Ctrl-C reaches every process of a terminal; the grid itself tells its workers to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    if torch.cuda.is_available():  # workers share the GPUs evenly
        torch.cuda.set_device(number % torch.cuda.device_count())
    data: dict[str, Datasets] = {}
    while True:
        try:
            cell, out = pipe.recv()
        except EOFError:
            return
        problem = run_cell(cell, Path(out), data)
        pipe.send(problem)
        if problem == _STOPPED:
            return


def run_cell(cell: Cell, out: Path, data: dict[str, Datasets]) -> str | None:
    """Run one cell to its end; None, or what went wrong."""
    from hemnet.study.dataset_cache import Remembered
    from hemnet.training.setup import open_datasets

    run, start = out / "runs" / cell.name, time.process_time()
    if finished(out, cell.name):  # by another process that shares the folder
        return None
    try:
        key = json.dumps(asdict(cell.config.data), default=str)
        if key not in data:
            data.clear()  # the cells of a grid mostly share one
            train_set, val_set = open_datasets(cell.config.data)
            data[key] = Remembered(train_set), None if val_set is None else Remembered(val_set)
        result = (cell.work or _train_cell)(cell, run, data[key])
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

    store = shared_store()
    store.expect(cell.config)
    result = train(cell.config, run, resume=True, quiet=True, data=data, prepare=store.attach)
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
