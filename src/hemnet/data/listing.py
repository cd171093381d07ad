"""Find files, and read lists of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from hemnet.errors import UserError

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm")
LABEL_EXTENSIONS = (".png", ".bmp", ".tif", ".tiff", ".gif", ".pgm")  # never lossy


def find_root(root: Path, marker: str, inside: Iterable[str] = ()) -> Path:
    """`root` or one of its sub-folders `inside`, whichever contains `marker`.

    Archives unpack both ways.
    """
    if not root.is_dir():
        raise UserError(f"{root}: no such folder. Give the folder of the data set as `root`.")
    candidates = [root, *(root / name for name in inside)]
    for candidate in candidates:
        if (candidate / marker).exists():
            return candidate
    tried = ", ".join(str(candidate / marker) for candidate in candidates)
    raise UserError(f"{root}: does not hold this data set; expected one of {tried}.")


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file, with or without a byte order mark."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise UserError(f"{path}: not a text file.")
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (UnicodeDecodeError, OSError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8. Save it as UTF-8"
        raise UserError(f"{path}: cannot be read as text: {reason}.") from None


def read_ids(path: Path) -> list[str]:
    return [line.split()[0] for line in read_lines(path) if line.strip()]


def files_under(
    folder: Path, extensions: tuple[str, ...], max_folders: int | None = None
) -> list[Path]:
    """All files with these extensions below a folder, sorted; hidden ones left out.

    Links are followed, except into a folder that is being walked: that would never end.
    """
    found = []
    for parent, folders, names in islice(os.walk(folder, followlinks=True), max_folders):
        here = os.path.realpath(parent)
        above = {here, *map(str, Path(here).parents)}
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and not (
                os.path.islink(path := os.path.join(parent, name))
                and os.path.realpath(path) in above
            )
        )
        found += [
            Path(parent, name)
            for name in sorted(names)
            if not name.startswith(".") and name.lower().endswith(extensions)
        ]
    return found
