"""A running average over training steps that counts every image once.

What an average like this has to get right, and what it costs to get wrong:

- *Data parallelism*: the mean is over the images of all ranks, or the ranks drift apart.
- *Gradient accumulation*: several forward passes between two optimizer steps are one step. They
  all start from the same value, and the average moves by the mean of all their images.
- *Activation checkpointing*: a forward pass repeated inside the backward pass must see the value
  of the first time and must not count again.
- *A bad batch*: statistics that are not finite are visible in that batch's output, but do not
  poison the average for ever (loss scaling skips such steps and goes on).

The optimizer is recognised by what it does to the parameters: their version counters move. A
forward pass belongs to the same step as the one before it if gradients have been accumulated and
the parameters have not changed since. (A hook on torch's optimizers would count those of other
networks, too, and miss optimizers that are not torch's.)
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


class RunningAverage(nn.Module):
    """value ← decay · value + (1 − decay) · mean over the images of one optimizer step.

    A value of zeros has seen nothing yet: the first step replaces it.
    """

    value: Tensor
    _start: Tensor
    _sum: Tensor
    _images: Tensor

    def __init__(self, initial: Tensor, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("value", initial)
        # State within one optimizer step; a checkpoint is taken between two.
        self.register_buffer("_start", initial.clone(), persistent=False)
        self.register_buffer("_sum", torch.zeros_like(initial), persistent=False)
        self.register_buffer("_images", initial.new_zeros(()), persistent=False)
        # The parameters' version at the last pass. Not a buffer: each rank has its own, and
        # DistributedDataParallel would overwrite it.
        self._seen = torch.full((), -1, dtype=torch.long, device="cpu")

    @torch.no_grad()
    def begin(self, parameters: Iterable[nn.Parameter]) -> Tensor:
        """The value this training pass starts from, as a copy that no later update changes."""
        if in_backward():
            return self._start.clone()
        trained = [p for p in parameters if p.requires_grad]
        continues = torch.zeros_like(self._images, dtype=torch.bool)
        if trained:
            version = parameter_version(trained)
            if any(p.grad is not None for p in trained):
                continues = self._seen == version
            self._seen = version
        start = torch.where(continues, self._start, self.value)
        self._start.copy_(start)
        self._sum.copy_(torch.where(continues, self._sum, 0.0))
        self._images.copy_(torch.where(continues, self._images, 0.0))
        return start

    @torch.no_grad()
    def update(self, per_image: Tensor) -> None:
        """Move by the mean of per_image: B,*shape, over every rank."""
        if in_backward():
            return
        total = per_image.detach().to(self.value.dtype).sum(dim=0)
        images = self._images.new_full((), per_image.shape[0])
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            packed = torch.cat((total.flatten(), images.reshape(1)))
            dist.all_reduce(packed)
            total, images = packed[:-1].view_as(total), packed[-1]
        self._sum.add_(total)
        self._images.add_(images)
        mean = self._sum / self._images
        weight = torch.where(self._start.any(), 1 - self.decay, 1.0).to(mean)
        moved = torch.lerp(self._start, mean, weight)
        self.value.copy_(torch.where(mean.isfinite().all(), moved, self.value))

    def extra_repr(self) -> str:
        return f"{tuple(self.value.shape)}, decay={self.decay}"


def in_backward() -> bool:
    """Whether this runs inside a backward pass, as the second forward of checkpointing does."""
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._current_graph_task_id() != -1)


@torch.library.custom_op("hemnet::parameter_version", mutates_args=())
def parameter_version(parameters: list[Tensor]) -> Tensor:
    """The sum of the parameters' version counters; an operator so that compilers leave it be."""
    total = sum(p._version for p in parameters)
    return torch.full((), total, dtype=torch.long, device=parameters[0].device)


@parameter_version.register_fake
def _(parameters: list[Tensor]) -> Tensor:
    return torch.empty((), dtype=torch.long, device=parameters[0].device)
