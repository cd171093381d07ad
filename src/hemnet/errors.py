"""Errors whose message is meant for users."""

from __future__ import annotations

import errno
import re

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(Exception):
    """An input cannot be used; the message says which, why, and what to do.

    The command line prints the message alone, without a traceback, and exits with 2.
    """


class DataError(UserError):
    """An image or label file cannot be used; the message names it and says what to do."""


def explain(error: BaseException) -> str | None:
    """The message for a failure of the machine, not the code; None where that is unclear.

    Such errors can come from any line that touches a file, a worker process or memory, so they
    are recognised here, once, and not where they happen.
    """
    text = str(error)
    if disk_is_full(error):
        where = getattr(error, "filename", None)
        return f"the disk is full{f': {where}' if where else ''}. Make room and run it again"
    if isinstance(error, OSError) and error.strerror:
        named = "" if error.filename is None else f"{_shortened(str(error.filename))}: "
        return f"{named}{error.strerror}"
    if is_wrong_name(error):
        return "a file name contains a NUL character, which no file system allows"
    if isinstance(error, UnicodeEncodeError) and "surrogates" in text:
        return f"a file name is not text in this system's encoding: {text}"
    if isinstance(error, RuntimeError) and "DataLoader worker" in text:
        return (
            "a process that reads images was killed, most likely because memory ran out. Use "
            "fewer of them (`workers`), or a smaller batch"
        )
    if isinstance(error, ValueError) and "more than 1 value per channel" in text:
        return (
            "a batch norm sees only one value per channel, from which it cannot learn. Give a "
            "larger optim.batch_size (of one process and pass), or model.freeze_norm"
        )
    if isinstance(error, RuntimeError) and (reason := lost_connection(error)) is not None:
        return (
            f"another process of this run has ended or cannot be reached ({reason}). If it ended, "
            "its own output says why; if the network failed or several machines cannot connect, "
            "see docs/distributed.md"
        )
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("t allocate memory" in text or "out of memory" in text)
    ):
        return "not enough memory"
    return None


def lost_connection(error: RuntimeError) -> str | None:
    """The reason that gloo, NCCL or torch's store give for a lost process; else None."""
    text = str(error)
    known = {"DistBackendError", "DistNetworkError", "DistStoreError"}
    if type(error).__name__ not in known and "gloo" not in text.lower():
        return None
    lines = re.sub(r"\[[^\]\s]*\.(?:cc|cpp|h):\d+\]\s*", "", text).strip().splitlines()
    # Gloo goes on in further sentences, which say nothing about this case.
    return _shortened(lines[0].split(". ")[0]) if lines else type(error).__name__


def is_wrong_name(error: BaseException) -> bool:
    """Whether a file name is invalid, which only the user can change."""
    if isinstance(error, OSError):
        return error.errno == errno.ENAMETOOLONG
    return isinstance(error, ValueError) and "null byte" in str(error)


def disk_is_full(error: BaseException) -> bool:
    """Also where a library gives only the text of the error."""
    return (isinstance(error, OSError) and error.errno in _FULL) or "No space left" in str(error)


def _shortened(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
