"""Tiny copies of the data sets' layouts, made by the tests that read them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image


def image(path: Path, height: int = 24, width: int = 32, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def label(path: Path, values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)
    return path


def ids(height: int = 24, width: int = 32, value: int = 0, seed: int | None = None) -> np.ndarray:
    if seed is None:
        return np.full((height, width), value, np.uint8)
    return np.random.default_rng(seed).integers(0, value + 1, (height, width), np.uint8)


def folder(root: Path, splits: dict[str, int], classes: int = 3) -> Path:
    """images/SPLIT/n.jpg and labels/SPLIT/n.png of random classes."""
    seed = 0
    for split, count in splits.items():
        for number in range(count):
            image(root / "images" / split / f"{number}.jpg", seed=seed)
            label(root / "labels" / split / f"{number}.png", ids(value=classes - 1, seed=seed))
            seed += 1
    (root / "classes.txt").write_text("\n".join(f"kind{i}" for i in range(classes)))
    return root


def head_of_a_png(width: int, height: int) -> bytes:
    """A file that claims a size, and a few bytes of what would fill it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(3 * 60_000 + 1) * 40, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
