"""Atomic writing of files, and reading what was written so."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hemnet.errors import UserError


@contextmanager
def atomic_write(path: Path, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for writing; it appears under its name only when it is complete.

    `durable`: it also survives a power failure. A link stays one, and what is no file, such as
    /dev/stdout, is written to and stays too.
    """
    if path.exists() and not path.is_file():
        # Nobody may be reading a pipe, which would be waited for.
        at_once = getattr(os, "O_NONBLOCK", 0)  # Windows has none, nor such pipes
        number = os.open(path, os.O_WRONLY | at_once)
        if at_once:
            os.set_blocking(number, True)
        with os.fdopen(number, "wb") as device:
            yield device
        return
    path = path.resolve() if path.is_symlink() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # others may write the same file
    try:
        with part.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)  # gives the space back
        raise
    if durable:
        sync_folder(path.parent)


def link(path: Path, name: Path) -> None:
    """Hard-link a file, or copy it: it is kept when the first name is replaced."""
    part = name.with_name(f".{name.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        os.link(path, part)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, part)
    os.replace(part, name)


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power failure, where the system can."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    with atomic_write(path, durable=durable) as file:
        file.write(text.encode())


def write_json(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n"
    with atomic_write(path) as file:
        file.write(text.encode(errors="backslashreplace"))  # the name of a file need not be text


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty where it is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def check_output(path: Path | None, makes_folder: bool = False) -> None:
    """Refuse an output path that cannot be written, before the work is done.

    `makes_folder`: the folder is made where there is none.
    """
    if path is None:
        return
    try:
        if path.is_dir():
            raise UserError(f"cannot write {path}: it is a folder. Give the name of a file")
        if path.exists() and not path.is_file():
            return  # such as /dev/stdout
        place = next(p for p in path.absolute().parents if p.exists())
        missing = place != path.absolute().parent
    except OSError as error:
        raise UserError(f"cannot write {str(path)[:200]}: {error.strerror}") from None
    if not place.is_dir():
        raise UserError(f"cannot write {path}: {place} is not a folder")
    if missing and not makes_folder:
        raise UserError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(place, os.W_OK):
        raise UserError(f"cannot write {path}: no permission to write into {place}")
