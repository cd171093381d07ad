"""Optimizer and learning rate: both are functions of the configuration and the step.

The paper's groups: weight decay on convolution weights only, biases at twice the rate without
decay. Whatever is neither (scales of norms, a learned step size) has the base rate, no decay.
"""

from __future__ import annotations

import difflib
from typing import Any

import torch
from timm.optim import (  # type: ignore[attr-defined]
    create_optimizer_v2,
    get_optimizer_info,
    list_optimizers,
)
from torch import nn

from hemnet.errors import UserError
from hemnet.training.config import OptimConfig

FALL, FALLS = 0.3, 3  # what a plateau leaves of the rate, and how many end a run
_TIMM = {"sgd": "momentum"}  # whose own sgd is Nesterov's


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """timm's, with our parameter groups. Momentum and betas go to those that have them."""
    name = _TIMM.get(config.name, config.name)
    known = [str(each) for each in list_optimizers()]
    if name not in known:
        close = difflib.get_close_matches(name, known) or ["sgd", "adamw", "muon"]
        raise UserError(f"optim.name is {name[:80]!r}: timm has none; try {', '.join(close)}")
    given: dict[str, Any] = {"lr": config.lr, "momentum": config.momentum}
    try:
        if get_optimizer_info(name).num_betas == len(config.betas):
            given["betas"] = config.betas
        groups = parameter_groups(model, config)
        made: torch.optim.Optimizer = create_optimizer_v2(groups, name, **given)
    except (ValueError, RuntimeError, ImportError, AssertionError) as error:
        raise UserError(f"optim.name {config.name} cannot be used: {error}") from None
    return made


def check_optimizer(config: OptimConfig) -> None:
    """Refuse what cannot be made, such as one of a package that is missing."""
    make_optimizer(nn.Linear(1, 1), config)


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """Groups with a name, their decay, and `multiple`: their rate over the base rate."""
    groups: dict[str, dict[str, Any]] = {}
    for module_name, module in model.named_modules():
        part = "backbone" if module_name.split(".")[0] == "backbone" else "head"
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            multiple = config.head_lr_mult if part == "head" else 1.0
            decay, kind = 0.0, "other"
            if name.split("_")[-1] == "bias":
                multiple, kind = multiple * config.bias_lr_mult, "bias"
            elif isinstance(module, nn.modules.conv._ConvNd | nn.Linear):
                decay, kind = config.weight_decay, "weights"
            key = f"{part} {kind}"
            group = {"name": key, "params": [], "weight_decay": decay, "multiple": multiple}
            groups.setdefault(key, group)["params"].append(parameter)
    return list(groups.values())


def lr_at(step: int, config: OptimConfig, falls: int = 0) -> float:
    """The base learning rate of step 0, 1, …: poly, or by plateaus, after a warm-up from a tenth.

    `falls` is how many times a plateau has been met.
    """
    if config.plateau_patience is None:
        lr = config.lr * (1 - step / config.steps) ** config.poly_power
    else:
        lr = config.lr * FALL**falls
    if step < config.warmup:
        lr *= 0.1 + 0.9 * step / config.warmup
    return lr


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give each group its multiple of the base learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["multiple"]


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]
