"""The run folder: who may write into it, and what is said when it cannot be written."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from hemnet.config import TrainConfig
from hemnet.engine.build import settle
from hemnet.engine.checkpoint import LAST, read_progress, write_atomically
from hemnet.errors import UserError
from hemnet.settings import differences, dump_config, read_config

CONFIG = "config.yaml"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def last_checkpoint(out: Path) -> Path:
    return out / "checkpoints" / LAST


def check_folder(config: TrainConfig, out: Path, resume: bool, allow_changes: bool) -> None:
    """Refuse to overwrite a run, or to resume another one than the configuration's."""
    last = last_checkpoint(out)
    if last.exists() and not resume:
        step = read_progress(last).step
        raise UserError(
            f"{out} already holds a run, which is at step {step}: go on with it by --resume, or "
            "choose another folder"
        )
    if last.exists() and (out / CONFIG).exists() and not allow_changes:
        changed = differences(settle(read_config(out / CONFIG)), config)
        if changed:
            raise UserError(
                f"{out} was begun with another configuration:\n  " + "\n  ".join(changed) + "\n"
                "Resume without these changes (--resume alone takes the run's own configuration), "
                "or allow them with --allow-changes"
            )


def write_config(config: TrainConfig, out: Path) -> None:
    write_atomically(out / CONFIG, dump_config(config).encode())


@contextmanager
def clear_errors(out: Path) -> Iterator[None]:
    """Inside, what stops a run says what is left of it."""
    try:
        yield
    except UserError as error:
        kept = _kept(out)
        raise UserError(f"{error}{kept and '. '.join(('', kept))}") from error
    except (OSError, SafetensorError) as error:
        number = error.errno if isinstance(error, OSError) else None
        full = number in _FULL or "No space left" in str(error)
        reason = "the disk is full" if full else str(error)
        raise UserError(f"cannot write to {out}: {reason}. {_kept(out)}".rstrip()) from error


def _kept(out: Path) -> str:
    last = last_checkpoint(out)
    try:
        step = read_progress(last).step
    except (UserError, OSError):
        return ""
    return f"The checkpoint of step {step} in {out} is intact: go on from it with --resume"
