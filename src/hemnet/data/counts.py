"""Read files in threads, count label values, compare content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hemnet.progress import track

T = TypeVar("T")


def read_all(
    task: Callable[[int], T], indices: Sequence[int], text: str, workers: int | None = None
) -> Iterator[T]:
    """`task` of every index, in order, with progress; decoding and hashing release the GIL."""
    with ThreadPoolExecutor(workers or min(16, os.cpu_count() or 1)) as pool:
        yield from track(pool.map(task, indices), text, len(indices))


def count_values(labels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Pixels of each value, (256,)."""
    return np.bincount(labels.ravel(), minlength=256).astype(np.int64)


def file_digest(path: Path) -> bytes:
    """A hash of a file's content."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).digest()
