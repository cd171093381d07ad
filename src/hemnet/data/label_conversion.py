"""Label files of other kinds into PNG files, in several processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hemnet.data.class_lists import colour_map
from hemnet.data.labels import DataError
from hemnet.errors import UserError
from hemnet.files import atomic_write
from hemnet.progress import track


def need(module: str) -> Any:
    """Import a package of the `data` extra, or say how to get it."""
    try:
        return __import__(module, fromlist=["_"])
    except ImportError:
        raise UserError(
            f"this needs {module.split('.')[0]}: pip install 'hemnet-torch[data]'"
        ) from None


def write_png(path: Path, values: NDArray[np.uint8], palette: bool = True) -> None:
    """Write a label map, whole or not at all."""
    image = Image.fromarray(values)
    if palette:
        image.putpalette([channel for colour in colour_map(256) for channel in colour])
    with atomic_write(path) as file:
        image.save(file, format="PNG", optimize=False)


def read_mat(path: Path, key: str) -> Any:
    try:
        return need("scipy.io").loadmat(str(path))[key]
    except UserError:
        raise
    except KeyError:
        raise DataError(f"{path}: no field {key!r}. Is this the right folder?") from None
    except Exception as error:  # scipy raises many kinds for damaged files
        raise DataError(f"{path}: cannot be read as a .mat file ({error}).") from None


def convert(
    task: Callable[[tuple[Path, Path]], None],
    jobs: Sequence[tuple[Path, Path]],
    text: str,
    workers: int | None = None,
) -> int:
    """Run `task` on the (source, target) pairs whose target is not there yet; how many ran."""
    todo = [(source, target) for source, target in jobs if not target.exists()]
    for folder in {target.parent for _, target in todo}:
        folder.mkdir(parents=True, exist_ok=True)
    if not todo:
        return 0
    count = workers if workers is not None else min(8, os.cpu_count() or 1)
    # Not in this process even when there are few: scipy does not survive every damaged file.
    with ProcessPoolExecutor(max(1, min(count, len(todo) // 8))) as pool:
        try:
            for _ in track(pool.map(task, todo, chunksize=8), text, len(todo)):
                pass
        except BrokenProcessPool:
            _name_the_damaged(task, todo)
            raise
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return len(todo)


def _name_the_damaged(
    task: Callable[[tuple[Path, Path]], None], todo: Sequence[tuple[Path, Path]]
) -> None:
    """Which file ended the process that converted it."""
    with ProcessPoolExecutor(1) as pool:
        for job in todo:
            if not job[1].exists():
                try:
                    pool.submit(task, job).result()
                except BrokenProcessPool:
                    raise DataError(
                        f"{job[0]}: so damaged that reading it ends the process. Restore the file."
                    ) from None
