"""Convert raw label files to PNG, in several processes.

Every file is written whole or not at all, so an interrupted conversion resumes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hemnet.data.class_lists import colour_map
from hemnet.errors import DataError, UserError
from hemnet.files import atomic_write
from hemnet.progress import track

Job = tuple[Path, Path]  # raw label file, PNG file


def need(module: str) -> Any:
    """Import a package of the `data` extra, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(
            f"this needs {module.split('.')[0]}: pip install 'hemnet-torch[data]'"
        ) from None


def write_png(path: Path, values: NDArray[np.uint8]) -> None:
    """Write a label map in VOC's colours."""
    image = Image.fromarray(values)
    image.putpalette([channel for colour in colour_map(256) for channel in colour])
    with atomic_write(path) as file:
        image.save(file, format="PNG", optimize=False)


def find_mats(folders: Iterable[Path], archive: str) -> list[Path]:
    """The `.mat` files of the first folder that has some."""
    folders = list(folders)
    for folder in folders:
        if found := sorted(folder.glob("*.mat")):
            return found
    raise UserError(
        f"{' or '.join(map(str, folders))}: no .mat files. Unpack {archive} there, or give the "
        "folder as `source`."
    )


def read_mat(path: Path, key: str) -> Any:
    try:
        return need("scipy.io").loadmat(str(path))[key]
    except UserError:
        raise
    except KeyError:
        raise DataError(f"{path}: no field {key!r}. Is this the right folder?") from None
    except Exception as error:  # scipy raises many kinds for damaged files
        raise DataError(f"{path}: cannot be read as a .mat file ({error}).") from None


def convert(task: Callable[[Job], None], jobs: Sequence[Job], workers: int | None = None) -> str:
    """Run `task` on the jobs whose PNG file does not exist yet; returns a report."""
    target = jobs[0][1].parent
    todo = [job for job in jobs if not job[1].exists()]
    report = f"{len(todo)} labels written to {target} ({len(jobs)} in all)"
    if not todo:
        return report
    target.mkdir(parents=True, exist_ok=True)
    count = workers if workers is not None else min(8, os.cpu_count() or 1)
    # Not in this process even when there are few: scipy does not survive every damaged file.
    with ProcessPoolExecutor(max(1, min(count, len(todo) // 8))) as pool:
        try:
            for _ in track(pool.map(task, todo, chunksize=8), target.name, len(todo)):
                pass
        except BrokenProcessPool:
            _name_the_damaged(task, todo)
            raise
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return report


def _name_the_damaged(task: Callable[[Job], None], todo: Sequence[Job]) -> None:
    """Name the file whose conversion crashed its process."""
    with ProcessPoolExecutor(1) as pool:
        for job in todo:
            if not job[1].exists():
                try:
                    pool.submit(task, job).result()
                except BrokenProcessPool:
                    raise DataError(
                        f"{job[0]}: so damaged that reading it ends the process. Restore the file."
                    ) from None
