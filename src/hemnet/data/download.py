"""Downloads with progress, resume and checksum; a file appears only when it is complete."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

from hemnet.errors import UserError
from hemnet.progress import progress_bar

CHUNK = 1 << 18


@dataclass(frozen=True)
class Archive:
    url: str
    md5: str | None = None  # None: not published; the checksums inside the archive are used

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


class _BrokenError(Exception):
    """The connection failed; the part that arrived is kept and can be resumed."""


def download(
    archive: Archive, folder: Path, *, timeout: float = 30, tries: int = 5, pause: float = 2
) -> Path:
    """Fetch an archive into `folder`, resuming what an earlier try left. Returns its path."""
    target = folder / archive.name
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    resumed = part.exists()
    _fetch(archive, part, timeout, tries, pause)
    problem = verify(part, archive)
    if problem and resumed:  # the part may be of another version of the file: start over once
        part.unlink()
        _fetch(archive, part, timeout, tries, pause)
        problem = verify(part, archive)
    if problem:
        part.unlink()
        raise UserError(
            f"{archive.url}: the server sent a wrong or damaged file ({problem}); it was removed. "
            f"Try again later, or put a good copy at {target}."
        )
    os.replace(part, target)
    return target


def _fetch(archive: Archive, part: Path, timeout: float, tries: int, pause: float) -> None:
    """Complete `part`, retrying after stalls and broken connections."""
    failures, size = 0, -1
    while True:
        try:
            _transfer(archive, part, timeout)
            return
        except _BrokenError as error:
            grown = part.stat().st_size if part.exists() else 0
            failures = 1 if grown > size >= 0 else failures + 1  # progress earns new tries
            size = grown
            if failures >= tries:
                raise UserError(
                    f"{archive.url}: {error}, after {tries} tries. {grown} bytes are kept in "
                    f"{part}; run the same command again to go on from there."
                ) from None
            time.sleep(pause)


def _transfer(archive: Archive, part: Path, timeout: float) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(archive.url, headers={"User-Agent": "hemnet"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            if archive.url.startswith("https:") and not answer.url.startswith("https:"):
                raise UserError(
                    f"{archive.url}: the server refers to {answer.url}, where anybody on the way "
                    "could change the file. Fetch it yourself if you trust it, and save it as "
                    f"{part.with_suffix('')}."
                )
            if answer.headers.get_content_type() == "text/html":
                raise UserError(
                    f"{archive.url}: the server sent a web page instead of the file. Open the "
                    f"address in a browser, and save the file as {part.with_suffix('')}."
                )
            if have and answer.status != 206:  # a server that cannot resume
                have = 0
            length = answer.headers.get("Content-Length")
            known = length is not None and length.isascii() and length.isdecimal()
            total = have + int(length) if known and len(length) < 20 else None
            free = shutil.disk_usage(part.parent).free
            if total and total - have > free:
                raise UserError(f"{part.parent}: {total - have} bytes needed, {free} are free.")
            _copy(answer, part, have, total, archive.name)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is left to send
            return
        if error.code < 500 and error.code not in (408, 429):
            raise UserError(f"{archive.url}: the server answered {error.code}.") from None
        raise _BrokenError(f"the server answered {error.code}") from None
    except (TimeoutError, http.client.HTTPException, OSError) as error:
        reason = "the server stalled" if "timed out" in str(error) else str(error) or repr(error)
        raise _BrokenError(reason) from None


def _copy(
    answer: http.client.HTTPResponse, part: Path, have: int, total: int | None, name: str
) -> None:
    with progress_bar(in_bytes=True) as bar, part.open("ab" if have else "wb") as file:
        task = bar.add_task(name, total=total, completed=have)
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            have += len(chunk)
            bar.update(task, completed=have)
    if total is not None and have < total:
        raise _BrokenError(f"the connection broke off at {have} of {total} bytes")


def verify(path: Path, archive: Archive) -> str | None:
    """What is wrong with a complete download, or None."""
    if archive.md5:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
        if found.hexdigest() != archive.md5:
            return f"MD5 {found.hexdigest()}, expected {archive.md5}"
        return None
    try:
        with zipfile.ZipFile(path) as opened:
            bad = opened.testzip()
            return f"{bad} inside is damaged" if bad else None
    except Exception as error:  # damaged, encrypted, or packed in a way Python does not know
        return f"not a zip file that can be read: {error}"


def unpack(archive: Path, folder: Path) -> None:
    """Unpack beside the target and move into place, so that nothing is left incomplete."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as scratch:
        try:
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as opened:
                    opened.extractall(scratch)
            else:
                with tarfile.open(archive) as packed:
                    packed.extractall(scratch, filter="data")
        except Exception as error:  # damaged, encrypted, or packed in an unknown way
            raise UserError(
                f"{archive}: cannot be unpacked ({error}). Remove it and run the command again."
            ) from None
        _move_in(Path(scratch), folder)


def _move_in(source: Path, folder: Path) -> None:
    """Move all of `source` into `folder`: new folders in one step, the rest file by file."""
    for entry in sorted(source.iterdir()):
        if entry.is_dir() and (folder / entry.name).is_dir():
            _move_in(entry, folder / entry.name)
        else:
            os.replace(entry, folder / entry.name)


def obtain(archive: Archive, folder: Path, brings: str) -> None:
    """Download and unpack, unless `brings`, a path in the archive, exists already."""
    if not (folder / brings).exists():
        unpack(download(archive, folder), folder)
