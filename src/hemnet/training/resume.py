"""The run folder: who may write into it, and what is said when it cannot be written."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from hemnet.errors import UserError, disk_is_full, explain
from hemnet.files import write_text
from hemnet.models.saving import CONFIG
from hemnet.run_folder import RunFolder
from hemnet.training.checkpoints import read_progress
from hemnet.training.config import TrainConfig
from hemnet.training.config_parser import differences, dump_config, read_config
from hemnet.training.setup import settle

log = logging.getLogger("hemnet")

_held: set[IO[bytes]] = set()


def _let_go() -> None:
    """A forked process (a reader of images) would hold the lock on after its parent was killed."""
    for file in _held:
        file.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def check_folder(config: TrainConfig, folder: RunFolder, resume: bool, allow_changes: bool) -> None:
    """Refuse to overwrite a run, or to resume another one than the configuration's."""
    last, out = folder.last, folder.path
    if last.exists() and not resume:
        step = read_progress(last).step
        raise UserError(
            f"{out} already holds a run, which is at step {step}: go on with it by `resume=True`, "
            "or choose another folder"
        )
    if not last.exists() and (folder.model / CONFIG).exists():
        raise UserError(
            f"{out} has a model but no checkpoint of a run, and training would replace the model: "
            "choose another folder, or move the model away"
        )
    if last.exists() and folder.holds_run and not allow_changes:
        changed = differences(settle(read_config(folder.config)), config)
        if changed:
            raise UserError(
                f"{out} was begun with another configuration:\n  " + "\n  ".join(changed) + "\n"
                "Resume without these changes (`resume=True` alone takes the run's own "
                "configuration), or allow them with `allow_changes=True`"
            )


def resumed_choices(config: TrainConfig, folder: RunFolder) -> TrainConfig:
    """What was left to be chosen (`auto`) is as the run in the folder has chosen it."""
    if not folder.last.exists() or not folder.holds_run:
        return config
    saved = read_config(folder.config)
    if config.loss.class_weights == "auto":
        chosen = saved.loss.class_weights
        config = replace(config, loss=replace(config.loss, class_weights=chosen))
    if config.optim.accumulate == "auto":
        count = saved.optim.accumulate
        config = replace(config, optim=replace(config.optim, accumulate=count))
    return config


Config = str | Path | Mapping[str, Any] | TrainConfig | None


def base_config(
    config: Config,
    out: str | Path | None,
    *,
    preset: str | None = None,
    resume: bool = False,
    allow_changes: bool = False,
) -> Config:
    """What a run's settings are taken from: `config`, or the run that is resumed."""
    if out is None:
        raise UserError("say where the run is to be: `out=RUN`")
    if allow_changes and not resume:
        raise UserError("`allow_changes` belongs to `resume`")
    if preset is not None and resume:
        raise UserError("`preset` is for a run that begins: `resume` takes the run's settings")
    if config is None and resume:
        folder = RunFolder(out)
        if not folder.holds_run:
            raise UserError(f"{out} holds no run to resume: it has no {folder.config.name}")
        return folder.config
    if config is None and preset is None:
        raise UserError(
            "give a configuration with `config`, such as configs/scenes.yaml, or begin with "
            "`preset=cpu` or `preset=gpu`"
        )
    return config


@contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Inside, no other run may write into the folder; what a killed one left half is removed.

    The lock belongs to the process: the kernel takes it away when the process dies, however it
    does. Where the file system has no locks, nothing keeps two runs apart.
    """
    out = folder.path
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = open(folder.lock, "a+b")  # noqa: SIM115
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}") from error
    try:
        if not _lock(file):
            raise UserError(
                f"{out} is in use by another run{_owner(folder)}. Wait until it ends, stop it, or "
                "choose another folder"
            )
        _held.add(file)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        file.flush()
        folder.remove_partial_files()
        yield
    finally:
        _held.discard(file)
        file.close()  # which unlocks; the file stays, or another run may hold one without a name


def _owner(folder: RunFolder) -> str:
    try:
        text = folder.lock.read_bytes()[:200].decode(errors="replace").strip()
    except OSError:  # Windows does not let anybody read what is locked
        return ""
    return f" ({text})" if text else ""


if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[bytes]) -> bool:
        """One byte far behind the file's end, so that its text can still be read."""
        file.seek(1 << 30)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            log.warning("this file system has no locks (%s): start only one run here", error)
        return True


def write_config(config: TrainConfig, folder: RunFolder) -> None:
    write_text(folder.config, dump_config(config), durable=True)


@contextmanager
def report_last_checkpoint(folder: RunFolder) -> Iterator[None]:
    """Inside, an error that stops the run also names the checkpoint to go on from."""
    try:
        yield
    except UserError as error:
        kept = _kept(folder)
        raise UserError(f"{error}{kept and '. '.join(('', kept))}") from error
    except (OSError, SafetensorError) as error:
        reason = "the disk is full" if disk_is_full(error) else str(error)
        raise UserError(
            f"cannot write to {folder.path}: {reason}. {_kept(folder)}".rstrip()
        ) from error
    except (RuntimeError, ValueError, MemoryError) as error:
        explained = explain(error)
        if explained is None:
            raise
        raise UserError(f"{explained}. {_kept(folder)}".rstrip()) from error


def _kept(folder: RunFolder) -> str:
    try:
        step = read_progress(folder.last).step
    except (UserError, OSError):
        return ""
    return (
        f"The checkpoint of step {step} in {folder.path} is intact: go on from it with "
        "`resume=True`"
    )
