"""Costs of a model: parameters, multiply-adds, FLOPs and activation memory.

Everything runs on the meta device: shapes without numbers, so that a ResNet-152 at 4096×4096
needs no memory. Multiply-adds are counted by `torch.utils.flop_counter`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from hemnet.models.registry import create_model
from hemnet.models.segmenter import Segmenter
from hemnet.nn.em_unit import em_units

MI = 2**20
_FLOAT = 4  # bytes


def _product_flops(_: Any, a: Any, b: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Of …,n,k times …,k,m."""
    return int(2 * math.prod(a) * b[-1])


# torch counts products, but not those that add to a tensor in place.
_IN_PLACE = {
    torch.ops.aten.baddbmm_: _product_flops,
    torch.ops.aten.addmm_: _product_flops,
}


@dataclass(frozen=True)
class Costs:
    """Of one forward pass."""

    params: int
    convolution_flops: int  # twice the multiply-adds
    matmul_flops: int
    batch_norm_elements: int
    relu_elements: int
    module_elements: int  # outputs of every layer, residual block and attention unit

    @property
    def flops(self) -> int:
        """Two per multiply-add of convolutions and matrix products."""
        return self.convolution_flops + self.matmul_flops

    @property
    def multiply_adds(self) -> int:
        return self.flops // 2

    @property
    def paper_flops(self) -> int:
        """The paper's count: batch norm (2 an element) and ReLU (1) doubled like convolutions,
        matrix products not doubled. Found by recomputing its Table 3."""
        pointwise = 2 * self.batch_norm_elements + self.relu_elements
        return self.convolution_flops + self.matmul_flops // 2 + 2 * pointwise

    def paper_bytes(self, input_elements: int) -> int:
        """The paper's memory: parameters, input, and every module's output and its gradient."""
        return _FLOAT * (self.params + input_elements + 2 * self.module_elements)


def on_meta(make: Callable[[], Segmenter]) -> Segmenter:
    """Build a model on the meta device, without memory for weights, in evaluation mode."""
    with torch.device("meta"):
        return make().eval()


def count(model: Segmenter, size: tuple[int, int], batch: int = 1) -> Costs:
    """Costs of a meta model for images B,3,H,W; nothing is computed."""
    elements = _ModuleElements(model)
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=_IN_PLACE) as counter:
        model(torch.empty(batch, 3, *size, device="meta"))
    elements.remove()
    counts = counter.get_flop_counts().get("Global", {})
    convolutions = sum(n for op, n in counts.items() if "convolution" in str(op))
    return Costs(
        params=sum(p.numel() for p in model.parameters()),
        convolution_flops=convolutions,
        matmul_flops=counter.get_total_flops() - convolutions,
        batch_norm_elements=elements.batch_norm,
        relu_elements=elements.relu,
        module_elements=elements.total,
    )


def peak_bytes(
    model: Segmenter, size: tuple[int, int], batch: int = 1, training: bool = False
) -> int:
    """Peak bytes of activations in a forward pass of a meta model.

    With `training`, all that the backward pass needs is kept. Workspaces of kernels are not
    counted: they differ between devices.
    """
    with torch.set_grad_enabled(training), LiveBytes() as alive:
        kept = model(torch.empty(batch, 3, *size, device="meta"))
    del kept
    return alive.peak


class _ModuleElements:
    """Sums the sizes of all modules' outputs, by hooks."""

    # Containers, and the parts that only pass on what their last layer made.
    _SILENT = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity)

    def __init__(self, model: Segmenter) -> None:
        self.batch_norm = self.relu = self.total = 0
        silent = {model, model.head, model.backbone, model.backbone.network}
        self._hooks = [
            module.register_forward_hook(self._add)
            for module in model.modules()
            if module not in silent and not isinstance(module, self._SILENT)
        ]

    def _add(self, module: nn.Module, _: Any, output: Any) -> None:
        elements = sum(t.numel() for t in tree_leaves(output) if isinstance(t, Tensor))
        self.total += elements
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            self.batch_norm += elements
        elif isinstance(module, nn.ReLU):
            self.relu += elements

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


class LiveBytes(TorchDispatchMode):
    """Tracks the bytes of live tensors; views and in-place operations add none."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if _is_tensor(t)}
        output = func(*args, **(kwargs or {}))
        for tensor in filter(_is_tensor, tree_leaves(output)):
            storage = tensor.untyped_storage()
            if storage._cdata in known or storage._cdata in self._known:
                continue
            self._known.add(storage._cdata)
            self.now += storage.nbytes()
            weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return output

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper's Table 3: what it prints, and the model that it is."""

    name: str
    title: str
    model: str
    channels: int | None
    params: str  # in 2^20
    gflops: str
    memory: str  # in MiB (the first row in 1000 MiB)


PAPER_ROWS = (
    PaperRow("resnet101", "ResNet-101", "fcn", None, "40.7", "370.1", "6874"),
    PaperRow("deeplabv3plus", "DeepLabV3+", "deeplabv3plus", 256, "16.0", "142.6", "318"),
    PaperRow("psanet", "PSANet", "psanet", 512, "26.4", "185.7", "528"),
    PaperRow("emanet_256", "EMANet (256)", "emanet", 256, "5.15", "45.2", "236"),
    PaperRow("hemnet_256", "HEMNet (256)", "hemnet", 256, "5.15", "45.2", "236"),
    PaperRow("emanet_512", "EMANet (512)", "emanet", 512, "10.6", "92.3", "329"),
    PaperRow("hemnet_512", "HEMNet (512)", "hemnet", 512, "10.6", "92.3", "331"),
)
PAPER_SIZE = (512, 512)  # the caption says 513; only 512 gives its figures
PAPER_CLASSES = 21


def paper_table() -> dict[str, dict[str, Any]]:
    """Table 3 by the paper's rules, ours beside the paper's; rows after the first are increments.

    The first row's parameters include a 2048→21 classifier, its FLOPs and memory do not.
    """
    table: dict[str, dict[str, Any]] = {}
    base: tuple[float, float, float] = (0, 0, 0)
    pixels = 3 * PAPER_SIZE[0] * PAPER_SIZE[1]
    for row in PAPER_ROWS:
        options: dict[str, Any] = {"preset": "paper"} if row.model == "hemnet" else {}
        make = partial(create_model, row.model, PAPER_CLASSES, channels=row.channels, **options)
        model = on_meta(make)
        model.backbone.pads = False  # 64 features a side, as the paper has it
        for unit in em_units(model):
            unit.absorbs = False
        costs = count(model, PAPER_SIZE)
        params, flops = costs.params, costs.paper_flops
        memory = costs.paper_bytes(pixels)
        if row.model == "fcn":
            positions = PAPER_SIZE[0] * PAPER_SIZE[1] // 64
            weights = 2048 * PAPER_CLASSES
            flops -= 2 * positions * weights
            outputs = positions * (PAPER_CLASSES + 2048)  # of the classifier and its dropout
            memory -= _FLOAT * (weights + PAPER_CLASSES + 2 * outputs)
        ours = (params / MI, flops / 1e9, memory / MI)
        if not table:
            base = ours
        else:
            ours = (ours[0] - base[0], ours[1] - base[1], ours[2] - base[2])
        paper = (row.params, row.gflops, row.memory)
        decimals = [len(text.partition(".")[2]) for text in paper]
        printed = [f"{value:.{n}f}" for value, n in zip(ours, decimals, strict=True)]
        limit = 0.001 if row.name == "resnet101" else 0.01
        table[row.name] = {
            "title": row.title,
            "params_mi": ours[0],
            "gflops": ours[1],
            "memory_mib": ours[2],
            "paper_params_mi": float(row.params),
            "paper_gflops": float(row.gflops),
            "paper_memory_mib": float(row.memory),
            "paper_params_printed": row.params,
            "paper_gflops_printed": row.gflops,
            "paper_memory_printed": row.memory,
            "params_agree": printed[0] == row.params,
            "gflops_agree": abs(ours[1] / float(row.gflops) - 1) <= limit,
            "memory_agree": abs(ours[2] / float(row.memory) - 1) <= limit,
        }
    return table
