"""Something happens in the middle of a training: a signal, a kill, a mistake."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

import hemnet


@contextmanager
def at_step(number: int, action: Callable[[], object]) -> Iterator[None]:
    """`action` comes before the forward pass of the step that follows `number` steps of ours."""
    steps = itertools.count()

    def hook(module: nn.Module, _: Any) -> None:
        if isinstance(module, hemnet.Segmenter) and module.training and next(steps) == number:
            action()

    handle = register_module_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()
