"""From images to class probabilities: one look, several scales and flips, or a sliding window."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hemnet.errors import UserError
from hemnet.inference.options import InferenceOptions
from hemnet.nn.em_unit import em_units


@torch.inference_mode()
def predict_classes(model: nn.Module, images: Tensor, options: InferenceOptions) -> Tensor:
    """Normalised images B,3,H,W → class of every pixel B,H,W int64."""
    if options.plain:
        return _tensor(model(images)).argmax(1)  # the softmax would not change the order
    return predict_probabilities(model, images, options).argmax(1)


@torch.inference_mode()
def predict_probabilities(model: nn.Module, images: Tensor, options: InferenceOptions) -> Tensor:
    """Normalised images B,3,H,W → class probabilities B,classes,H,W float32."""
    height, width = images.shape[-2:]
    total: Tensor | None = None
    for scale in options.scales:
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        # Antialiased like the training transform's, so that small scales look as in training.
        scaled = images if size == (height, width) else _resize(images, size, antialias=True)
        seen = _look(model, scaled, options)
        if options.flip:
            seen = (seen + _look(model, scaled.flip(-1), options).flip(-1)) / 2
        seen = seen if size == (height, width) else _resize(seen, (height, width))
        total = seen if total is None else total.add_(seen)
    assert total is not None
    return total / len(options.scales)


def _look(model: nn.Module, images: Tensor, options: InferenceOptions) -> Tensor:
    """Probabilities at the images' own size, by sliding window where one is asked for."""
    height, width = images.shape[-2:]
    if options.window is None:
        return _softmax(model, images)
    # An image smaller than the window is seen as it is: padding would only show what is not there.
    rows, columns = min(options.window_size[0], height), min(options.window_size[1], width)
    if (rows, columns) == (height, width):
        return _softmax(model, images)
    weight = window_ramp(rows, images.device)[:, None] * window_ramp(columns, images.device)
    total: Tensor | None = None
    weights = torch.zeros(height, width, device=images.device)
    for top in window_starts(height, rows, options.overlap):
        for left in window_starts(width, columns, options.overlap):
            place = (..., slice(top, top + rows), slice(left, left + columns))
            seen = _softmax(model, images[place].contiguous())
            if total is None:
                total = seen.new_zeros(*seen.shape[:2], height, width)
            total[place] += seen * weight
            weights[place] += weight
    assert total is not None
    return total.div_(weights)


def window_starts(length: int, window: int, overlap: float) -> list[int]:
    """First pixels of evenly spaced windows that cover `length` and overlap by at least that."""
    stride = max(1, int(window * (1 - overlap)))
    count = 1 + max(0, -(-(length - window) // stride))
    return [round(i * (length - window) / max(1, count - 1)) for i in range(count)]


def window_ramp(length: int, device: torch.device) -> Tensor:
    """Weights 1, 2, …, 2, 1, scaled to 1: a window knows its middle better than its border."""
    steps = torch.arange(1, length + 1, device=device, dtype=torch.float32)
    weight = torch.minimum(steps, steps.flip(0))
    return weight / weight.max()


def _softmax(model: nn.Module, images: Tensor) -> Tensor:
    return _tensor(model(images)).float().softmax(1)


def _tensor(logits: Tensor) -> Tensor:
    if not isinstance(logits, Tensor):
        raise TypeError(f"a model must return logits B,classes,H,W, not {type(logits).__name__}")
    return logits


def _resize(images: Tensor, size: tuple[int, int], antialias: bool = False) -> Tensor:
    return F.interpolate(images, size, mode="bilinear", antialias=antialias)


@contextmanager
def em_iterations(model: nn.Module, iterations: int | None) -> Iterator[None]:
    """Inside, the EM units of the model run this many iterations in evaluation."""
    if iterations is None:
        yield
        return
    units = em_units(model)
    if not units:
        raise UserError(
            "this model has no EM unit whose `iterations` could be chosen. An exported file has "
            "those it was exported with."
        )
    before = [unit.eval_iterations for unit in units]
    try:
        for unit in units:
            unit.eval_iterations = iterations
        yield
    finally:
        for unit, own in zip(units, before, strict=True):
            unit.eval_iterations = own
