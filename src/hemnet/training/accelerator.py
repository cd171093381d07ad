"""Where a run computes: one device, or one of several processes, through accelerate."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.distributed.nn  # noqa: F401 - before any group is made: it would keep that for ever
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor

from hemnet.errors import UserError
from hemnet.inference.open_model import find_device
from hemnet.training.config import RunConfig
from hemnet.training.distributed import join

_MIXED = {"float32": "no", "bf16": "bf16", "fp16": "fp16"}


@contextmanager
def computing(config: RunConfig) -> Iterator[Accelerator]:
    """An accelerator for one run; afterwards the process is as before.

    The processes of a distributed run are started by `torchrun` or `accelerate launch`.
    """
    on_cpu = find_device(config.device).type == "cpu"
    if on_cpu and config.precision == "fp16":
        raise UserError("run.precision fp16 needs a GPU: use float32 or bf16")
    outside = dist.is_available() and dist.is_initialized()
    # Its settings are global to the process, and a second run may want others.
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        join(cpu=on_cpu, timeout=config.timeout)
        yield Accelerator(cpu=on_cpu, mixed_precision=_MIXED[config.precision])
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        if not outside and dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
            # The wrapped model, in a cycle of references, still holds the group. Its threads have
            # to end before the interpreter does, or may abort the process when all is done.
            atexit.register(gc.collect)


def summed(tensor: Tensor) -> Tensor:
    """The sum over all processes, in place."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(tensor)
    return tensor
