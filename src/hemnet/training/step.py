"""One optimizer step, wherever it is taken: in a run, a learning rate test or a study."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from hemnet.data import Batch
from hemnet.errors import UserError
from hemnet.training.accelerator import summed
from hemnet.training.config import TrainConfig
from hemnet.training.loss import SegmentationLoss
from hemnet.training.optim import lr_at, set_lr, trainable
from hemnet.training.setup import memory_format


class TrainingStep:
    """Forward and backward passes, then the change of the weights.

    Whatever happens in step s is a function of the configuration, the state before it and s.

    Args:
        model: what `build_model` gave, on its device; `optimizer` has its parameters.
        accelerator: gives precision and processes, see `computing`.

    Examples:
        with computing(config.run) as accelerator:
            optimizer = make_optimizer(model, config.optim)
            step = TrainingStep(model, loss, optimizer, config, accelerator)
            batches = iter(build_batches(config, dataset, model, 0, accelerator))
            for number in range(config.optim.steps):
                step(number, batches)
    """

    def __init__(
        self,
        model: nn.Module,
        loss: SegmentationLoss,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        accelerator: Accelerator,
    ) -> None:
        self.model, self.loss, self.config, self.accelerator = model, loss, config, accelerator
        self.layout = memory_format(config)
        self.wrapped, self.optimizer = accelerator.prepare(model, optimizer)

    def __call__(self, number: int, batches: Iterator[Batch]) -> Tensor:
        """Take step `number` on the next batches; the loss, once it is known to be finite."""
        parts = self.draw(batches)
        loss = self.backward(number, parts, self.total(parts))
        check_finite(loss, number)
        self.update(lr_at(number, self.config.optim))
        return loss

    def draw(self, batches: Iterator[Batch]) -> list[Batch]:
        """One batch for each pass of a step."""
        return [next(batches) for _ in range(self.config.optim.passes)]

    def total(self, parts: Sequence[Batch]) -> float:
        """The weight of this process's pixels, by whose sum over processes a loss is divided."""
        return sum(float(self.loss.total(part.masks)) for part in parts)

    def backward(self, number: int, parts: Sequence[Batch], total: float) -> Tensor:
        """This process's part of the loss, its gradient added to that of the parameters."""
        self._seed_dropout(number)
        step_loss = torch.zeros((), device=self.accelerator.device)
        for part in parts:
            images = part.images.contiguous(memory_format=self.layout)
            last = part is parts[-1]
            with nullcontext() if last else self.accelerator.no_sync(self.wrapped):
                loss = self.loss.of(self.wrapped, images, part.masks, part.valid) / max(total, 1.0)
                # Data parallelism takes the mean over processes, each of which has a part.
                self.accelerator.backward(loss * self.accelerator.num_processes)
            step_loss += loss.detach()
        return step_loss

    def update(self, lr: float) -> None:
        """Change the weights by the gradient, which is gone afterwards."""
        set_lr(self.optimizer, lr)
        if self.config.optim.clip is not None:
            self.accelerator.clip_grad_norm_(trainable(self.model), self.config.optim.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _seed_dropout(self, number: int) -> None:
        """Dropout draws a function of (seed, step, process) alone."""
        key = [self.config.run.seed, number, self.accelerator.process_index]
        state = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
        torch.manual_seed(int(state) & (2**63 - 1))


def check_finite(loss: Tensor, number: int) -> float:
    """The loss of step `number` summed over all processes."""
    value = float(summed(loss.clone()))
    if not math.isfinite(value):
        raise UserError(
            f"the loss is {value} near step {number + 1}: the training has diverged. Try a lower "
            "optim.lr, optim.warmup, optim.clip, or float32 precision"
        )
    return value
