"""Fold batch norms into the convolutions before them, for inference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval


def fold_batch_norms(model: nn.Module) -> int:
    """Fold in place every batch norm whose input is one convolution's output; returns how many.

    Pairs are found by running the model once and seeing which norm is given which convolution's
    output: names and order tell too little for networks of any family.
    """
    names = {module: name for name, module in model.named_modules()}
    made: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # holds outputs, so that no id is used twice
    calls: dict[nn.Module, int] = {}
    pairs: list[tuple[nn.Conv2d, _BatchNorm]] = []

    def after_conv(module: nn.Conv2d, _: Any, output: Tensor) -> None:
        calls[module] = calls.get(module, 0) + 1
        made[id(output)] = (module, output)

    def before_norm(module: _BatchNorm, inputs: tuple[Tensor, ...]) -> None:
        calls[module] = calls.get(module, 0) + 1
        if id(inputs[0]) in made:
            pairs.append((made[id(inputs[0])][0], module))

    hooks = []
    for module in names:
        if isinstance(module, nn.Conv2d):
            hooks.append(module.register_forward_hook(after_conv))
        elif isinstance(module, _BatchNorm):
            hooks.append(module.register_forward_pre_hook(before_norm))
    weight = next(model.parameters())
    with torch.no_grad():
        model(torch.zeros(1, 3, 32, 32, device=weight.device, dtype=weight.dtype))
    for hook in hooks:
        hook.remove()

    folded = 0
    for conv, norm in pairs:
        if calls[conv] > 1 or calls[norm] > 1:  # shared: another use would change too
            continue
        # timm's norms carry their activation
        carried = [getattr(norm, name, None) for name in ("drop", "act")]
        rest = [part for part in carried if isinstance(part, nn.Module)]
        _replace(model, names[norm], nn.Sequential(*rest) if rest else nn.Identity())
        _replace(model, names[conv], fuse_conv_bn_eval(conv, norm))
        folded += 1
    return folded


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)
