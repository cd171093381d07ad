"""Backbones: timm networks as feature extractors with a chosen output stride.

timm says which strides a network can do only by trying, so a backbone is probed once when it is
made: what comes out has the asked stride, or the error says which strides the network has.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import timm
import torch
from timm.models.hrnet import HighResolutionNetFeatures
from timm.models.resnet import BasicBlock, Bottleneck
from torch import Tensor, nn
from torch.nn import functional as F

from hemnet.errors import UserError
from hemnet.nn.pooling import region_means

STRIDES = (8, 16, 32)
PAPER_GRID = (1, 2, 4)
_PROBE_SIZES = ((33, 47), (1, 1))
# Keyword arguments that make a network of fixed input size take any size; the first set that the
# network accepts is used.
_ANY_SIZE: tuple[dict[str, Any], ...] = (
    {"strict_img_size": False},  # Swin
    {"dynamic_img_size": True},  # ViT
    {},
)


class Backbone(nn.Module):
    """Features of a timm network, coarsest last.

    images B,3,H,W → [B,C_i,⌈H/s_i⌉,⌈W/s_i⌉], with C_i = `channels[i]`, s_i = `strides[i]` and
    s_-1 = `output_stride`.

    `multi_grid` multiplies the dilations of the blocks of a ResNet's last stage ("auto": 1, 2, 4
    for the paper's `resnet*s`). `resnet_v1` moves each stage's stride from the 3×3 to the first
    1×1 convolution, as in the first ResNet paper and in weights that were trained so.
    """

    def __init__(
        self,
        name: str = "resnet101s",
        output_stride: int = 8,
        multi_grid: Sequence[int] | Literal["auto"] | None = "auto",
        resnet_v1: bool = False,
        pretrained: bool = False,
    ) -> None:
        super().__init__()
        _check_name(name)
        if output_stride not in STRIDES:
            raise UserError(f"output_stride must be one of {STRIDES}, not {output_stride!r}")
        self.name = name
        self.output_stride = output_stride
        network: Any = _create(name, output_stride, pretrained)
        self.network = network
        config = getattr(network, "pretrained_cfg", None) or network.default_cfg
        self.mean = tuple(float(v) for v in config["mean"])
        self.std = tuple(float(v) for v in config["std"])
        if multi_grid == "auto":
            bottlenecks = name.startswith("resnet") and name.endswith("s")
            multi_grid = PAPER_GRID if bottlenecks else None
        self.multi_grid = None if multi_grid is None else tuple(multi_grid)
        self.resnet_v1 = resnet_v1
        if self.multi_grid is not None:
            _set_multi_grid(self.network, name, self.multi_grid)
        if resnet_v1:
            _move_strides(self.network, name)

        layout = getattr(self.network, "output_fmt", None)
        self._channels_last_output = getattr(layout, "value", layout) == "NHWC"
        self._joins_branches = isinstance(self.network, HighResolutionNetFeatures)
        self._reductions: list[int] = list(network.feature_info.reduction())
        self._pad_to = 1
        self.channels, self.strides = self._probe()

    def forward(self, images: Tensor) -> list[Tensor]:
        height, width = images.shape[-2:]
        if self._pad_to > 1:
            pad = (0, -width % self._pad_to, 0, -height % self._pad_to)
            images = F.pad(images, pad)  # zero is the mean colour
        features = list(self.network(images))
        if self._channels_last_output:
            features = [f.permute(0, 3, 1, 2) for f in features]
        if self._pad_to > 1:
            features = [
                f[..., : -(-height // s), : -(-width // s)]
                for f, s in zip(features, self._reductions, strict=True)
            ]
        if self._joins_branches:
            features.append(self._join(features))
        return features

    def _join(self, features: list[Tensor]) -> Tensor:
        """HRNet's branches, resized to the asked stride and stacked: B,ΣC,H/s,W/s."""
        height, width = features[self._reductions.index(self.output_stride)].shape[-2:]
        size = (height, width)
        parts = []
        for feature, reduction in zip(features, self._reductions, strict=True):
            if reduction < 4:  # the stem, not a branch
                continue
            if reduction < self.output_stride:
                feature = region_means(feature, size)
            elif reduction > self.output_stride:
                feature = F.interpolate(feature, size, mode="bilinear", align_corners=True)
            parts.append(feature)
        return torch.cat(parts, 1)

    def _probe(self) -> tuple[list[int], list[int]]:
        """Channels and strides, measured; turns padding on where the network needs it."""
        device = next(self.parameters()).device
        asked = self.output_stride
        problem = ""
        coarsest = max(*self._reductions, asked)
        for pad_to in (1, coarsest, 2 * coarsest):
            self._pad_to = pad_to
            try:
                with _evaluating(self):
                    outputs = [self(torch.zeros(1, 3, *s, device=device)) for s in _PROBE_SIZES]
            except (RuntimeError, AssertionError, ValueError) as error:
                problem = str(error).splitlines()[0] if str(error) else type(error).__name__
                continue
            expected = [(-(-h // asked), -(-w // asked)) for h, w in _PROBE_SIZES]
            if [tuple(f[-1].shape[-2:]) for f in outputs] == expected:
                strides = self._reductions + [asked] * self._joins_branches
                return [f.shape[1] for f in outputs[0]], strides
            problem = f"its last feature has stride {self._reductions[-1]}"
        if self._reductions[-1] != asked:
            raise UserError(
                f"backbone {self.name!r} cannot do output_stride {asked}: it does "
                f"{self._reductions[-1]}"
            )
        raise UserError(
            f"backbone {self.name!r} cannot be used: it does not take images of any size "
            f"({problem})"
        )


def _check_name(name: str) -> None:
    """Only plain timm names: `hf-hub:` and `local-dir:` would fetch or read a foreign config."""
    if not isinstance(name, str) or ":" in name or not timm.is_model(name.split(".")[0]):
        close = difflib.get_close_matches(str(name), timm.list_models(), n=5)
        hint = f"did you mean {', '.join(close)}?" if close else "see timm.list_models()"
        raise UserError(f"timm has no backbone called {name!r}; {hint}")


def _create(name: str, output_stride: int, pretrained: bool) -> nn.Module:
    """The network at this stride, or at its own when it takes none (the probe then decides)."""
    refusal = ""
    any_size = _ANY_SIZE
    if timm.models.model_entrypoint(name.split(".")[0]).__module__.endswith(".hrnet"):
        any_size = ({"feature_location": ""},)  # the branches, not the classifier's expansion
    strides: tuple[dict[str, Any], ...] = ({"output_stride": output_stride}, {})
    for stride in strides:
        for options in any_size:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # timm's notes on deprecated names
                    return timm.create_model(
                        name, features_only=True, pretrained=pretrained, **stride, **options
                    )
            except (TypeError, AssertionError, NotImplementedError) as error:
                refusal = str(error) or type(error).__name__
            except RuntimeError as error:
                if "pretrained weights" in str(error):
                    raise UserError(
                        f"timm has no weights for {name!r}: use weights=None or a file, or a "
                        "backbone of timm.list_pretrained()"
                    ) from None
                if "features_only" not in str(error):
                    raise
                refusal = str(error)
            except OSError as error:  # no connection, no such weights
                raise UserError(f"cannot fetch the weights of {name!r}: {error}") from None
    raise UserError(f"backbone {name!r} cannot give feature maps: {refusal.splitlines()[0]}")


def _blocks(network: nn.Module, name: str, what: str, kinds: tuple[type, ...]) -> list[nn.Module]:
    stages: Any = network
    if not hasattr(network, "layer4") or not isinstance(stages.layer4[0], kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise UserError(
            f"{what} needs a ResNet of timm's {names} blocks, such as resnet50 or resnet101s; "
            f"backbone {name!r} has none"
        )
    return [block for i in range(1, 5) for block in getattr(stages, f"layer{i}")]


def _set_multi_grid(network: nn.Module, name: str, grid: tuple[int, ...]) -> None:
    _blocks(network, name, "multi_grid", (BasicBlock, Bottleneck))
    stages: Any = network
    blocks = list(stages.layer4)
    if len(grid) != len(blocks) or any(type(g) is not int or g < 1 for g in grid):
        raise UserError(
            f"multi_grid of {name!r} must be {len(blocks)} positive whole numbers, one for each "
            f"block of its last stage, not {grid}"
        )
    for block, rate in zip(blocks, grid, strict=True):
        for conv in (block.conv1, block.conv2):
            if conv.kernel_size == (3, 3):
                conv.dilation = (conv.dilation[0] * rate, conv.dilation[1] * rate)
                conv.padding = conv.dilation


def _move_strides(network: nn.Module, name: str) -> None:
    for block in _blocks(network, name, "resnet_v1", (Bottleneck,)):
        assert isinstance(block, Bottleneck)
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(training)
