"""What `hemnet predict` is given: files, folders, patterns and lists, and the names of results."""

from __future__ import annotations

import glob
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hemnet.errors import UserError

# Of files in folders; a file that is named itself is tried whatever it is called.
SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif"}
SUFFIXES |= {".jp2", ".ppm", ".pgm", ".pnm", ".avif"}
LONGEST = 200  # bytes of a result's name; file systems take 255, of which a .part needs some


@dataclass(frozen=True)
class Source:
    """An image file, and what its results are called: a relative path without suffix."""

    path: Path
    name: str
    content: Any = None  # a PIL image or an array, instead of the file


def find_images(
    inputs: Sequence[str], listed: Iterable[str] = (), leave_out: Path | None = None
) -> list[Source]:
    """The images of files, folders (with all below) and patterns, then those of a list.

    An input that gives no image is a mistake; a listed file may turn out to be missing. A file
    given twice counts once. Nothing below `leave_out` (the folder of the results) is an input.
    """
    found: dict[Path, str] = {}  # absolute path → name by its own folder
    for text in inputs:
        before = len(found)
        again = False
        for path, name in _expand(text):
            absolute = Path(os.path.abspath(path))
            if leave_out is not None and absolute.is_relative_to(os.path.abspath(leave_out)):
                continue
            again |= absolute in found
            found.setdefault(absolute, name)
        if len(found) == before and not again:
            kinds = "no image in this folder" if os.path.isdir(text) else "no such file or folder"
            raise UserError(f"{text}: {kinds}.")
    for line in listed:
        text = line.strip("\r\n")
        if text.strip():
            absolute = Path(os.path.abspath(text))
            found.setdefault(absolute, absolute.name)
    if not found:
        raise UserError("no images: give files, folders, patterns, or - and a list on stdin.")
    paths = list(found)
    return [
        Source(_shown(path), _short(name))
        for path, name in zip(paths, unique_names(paths, list(found.values())), strict=True)
    ]


def unique_names(paths: Sequence[Path], names: Sequence[str]) -> list[str]:
    """A name without suffix for each file, no two alike even where case does not count.

    A file alone with its name keeps it. Others have the folders by which they differ before it,
    and where that is not enough (x.jpg and x.png in one folder) keep their suffix.
    """
    full = _below_common(paths)
    chosen = [_bare(name) for name in names]
    for longer in ([_bare(name) for name in full], full):
        twice = Counter(name.casefold() for name in chosen)
        chosen = [
            other if twice[name.casefold()] > 1 else name
            for name, other in zip(chosen, longer, strict=True)
        ]
    # A longer name may meet another's short one; full paths with suffix never meet.
    return chosen if len(set(map(str.casefold, chosen))) == len(chosen) else full


def _bare(name: str) -> str:
    path = PurePosixPath(name)
    return str(path.with_suffix("")) if path.name else "image"  # of a folder such as /


def _short(name: str) -> str:
    """A name whose last part leaves room for suffixes; what is cut off counts in a checksum."""
    folder, slash, last = name.rpartition("/")
    content = os.fsencode(last)
    if len(content) <= LONGEST:
        return name
    check = hashlib.blake2b(content, digest_size=8).hexdigest()
    start = content[: LONGEST - 17].decode(errors="ignore")  # no part of a character
    return f"{folder}{slash}{start}-{check}"


def _below_common(paths: Sequence[Path]) -> list[str]:
    try:
        common = Path(os.path.commonpath([path.parent for path in paths]))
    except ValueError:  # several drives
        return [path.as_posix().replace(":", "").lstrip("/") for path in paths]
    return [path.relative_to(common).as_posix() for path in paths]


def _expand(text: str) -> list[tuple[Path, str]]:
    """The image files an input means, each with its name relative to the input."""
    path = Path(text)
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        return [(file, file.relative_to(path).as_posix()) for file in files]
    if path.exists():
        return [(path, path.name)]
    matches = sorted(glob.glob(text, recursive=True))
    files = [Path(match) for match in matches if os.path.isfile(match)]
    return [(file, file.name) for file in files]


def _shown(path: Path) -> Path:
    """As the user would write it: relative where it lies below the working folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
