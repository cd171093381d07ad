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
from hemnet.nn.geometry import (
    FeatureInfo,
    LayerShift,
    Placement,
    downsample,
    larger,
    offsets,
    record_shifts,
    symmetric_padding,
    upsample,
)

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

    images B,3,H,W → [B,C_i,h_i,w_i], with C_i = `channels[i]`, stride s_i = `strides[i]` and
    s_-1 = s = `output_stride`. Feature (y, x) is centred on pixel s_i·(y, x) + `offsets[i]`.

    An image is padded at the right and the bottom to the next height and width k·s + 1, so that
    h_i = k·s/s_i + 1: the last features lie on the image's border or beyond it, and every pixel
    lies between features. Networks that cut images into patches see a multiple of s instead, and
    h_i = ⌈H/s_i⌉.

    `multi_grid` multiplies the dilations of the blocks of a ResNet's last stage ("auto": 1, 2, 4
    for the paper's `resnet*s`). `resnet_v1` moves each stage's stride from the 3×3 to the first
    1×1 convolution, as in the first ResNet paper and in weights that were trained so.

    `align_corners=False` reads features as a network does that was trained with up-sampling of
    that kind: each as the middle of a cell of s_i×s_i pixels, offset (s_i − 1)/2, on images
    padded to a multiple of s.
    """

    def __init__(
        self,
        name: str = "resnet101s",
        output_stride: int = 8,
        multi_grid: Sequence[int] | Literal["auto"] | None = "auto",
        resnet_v1: bool = False,
        pretrained: bool = False,
        align_corners: bool = True,
    ) -> None:
        super().__init__()
        _check_name(name)
        if output_stride not in STRIDES:
            raise UserError(f"output_stride must be one of {STRIDES}, not {output_stride!r}")
        self.name = name
        self.output_stride = output_stride
        network: Any = _create(name, output_stride, pretrained)
        symmetric_padding(network)
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
        self._coarsest = max(*self._reductions, output_stride)
        self._extra, self._pad_to, self._least = 1, self._coarsest, 1
        self.align_corners = align_corners
        self.pads = True  # False: images as they are, to count a network as its paper does
        self.channels, self.strides, self.offsets = self._probe()

    def forward(self, images: Tensor) -> list[Tensor]:
        height, width = images.shape[-2:]
        features = list(self.network(self.pad(images)))
        if self._channels_last_output:
            features = [f.permute(0, 3, 1, 2) for f in features]
        if self._joins_branches:
            features.append(self._join(features))
        if not self.pads or (self._extra and self._pad_to == self.output_stride):
            return features
        strides = self._reductions + [self.output_stride] * self._joins_branches
        return [
            f[..., : self._count(height, s), : self._count(width, s)]
            for f, s in zip(features, strides, strict=True)
        ]

    def pad(self, images: Tensor) -> Tensor:
        """Pad images to a size that the network handles exactly."""
        if not self.pads:
            return images
        height, width = images.shape[-2:]
        room = (0, self._padded(width) - width, 0, self._padded(height) - height)
        if torch.compiler.is_exporting() or any(room):
            images = F.pad(images, room)  # zero is the mean colour
        return images

    def _padded(self, pixels: int) -> int:
        """The padded length of an axis."""
        # No negative numbers: what an exported graph divides is rounded towards zero.
        pad_to = self._pad_to
        padded = (pixels - self._extra + pad_to - 1) // pad_to * pad_to + self._extra
        if self._least == 1:
            return padded
        return larger(padded, self._least)

    def _count(self, pixels: int, stride: int) -> int:
        """Number of features of this stride along an axis."""
        if not self._extra:
            return (pixels + stride - 1) // stride
        cells = (pixels + self.output_stride - 2) // self.output_stride
        if self._least > 1:
            cells = larger(cells, 1)
        return cells * self.output_stride // stride + 1

    def mask(self, images: Tensor, valid: Tensor | None = None) -> Tensor | None:
        """1,h,w or B,h,w: which of the last features lie on images B,3,H,W, not on padding.

        `valid` (B,H,W) is False where the images themselves are padded. None where no feature
        lies on padding.
        """
        height, width = images.shape[-2:]
        s = self.output_stride
        if valid is not None:
            rows, columns = (
                self.placement.pixels(self._count(n, s), n).to(images.device)
                for n in (height, width)
            )
            on_image = valid[:, rows][:, :, columns].bool()
            inside = self.mask(images)
            return on_image if inside is None else on_image & inside
        if not self._extra or not self.pads:
            return None
        counts = [self._count(n, s) for n in (height, width)]
        whole = [(count - 1) * s + 1 for count in counts]
        if not torch.compiler.is_exporting() and whole == [height, width]:
            return None
        down, across = (
            torch.arange(count, device=images.device) * s < n
            for count, n in zip(counts, (height, width), strict=True)
        )
        return (down[:, None] & across)[None]

    @property
    def features(self) -> FeatureInfo:
        """Of the feature maps, for heads."""
        return FeatureInfo(self.channels, self.strides, self.offsets, self.align_corners)

    @property
    def placement(self) -> Placement:
        """Of the last features."""
        return Placement(self.output_stride, self.offsets[-1])

    def _join(self, features: list[Tensor]) -> Tensor:
        """HRNet's branches, resized to the asked stride and stacked: B,ΣC,H/s,W/s."""
        size = features[self._reductions.index(self.output_stride)].shape[-2:]
        parts = []
        for feature, reduction in zip(features, self._reductions, strict=True):
            if reduction < 4:  # the stem, not a branch
                continue
            if reduction < self.output_stride:
                feature = downsample(feature, self.output_stride // reduction)
            elif reduction > self.output_stride:
                feature = upsample(feature, size, reduction // self.output_stride)
            parts.append(feature)
        return torch.cat(parts, 1)

    def _probe(self) -> tuple[list[int], list[int], list[float]]:
        """Measure channels, strides and offsets, and find the padding that the network needs."""
        device = next(self.parameters()).device
        asked = self.output_stride
        problem = ""
        coarsest = self._coarsest
        # Some cannot do a feature map of one position, some only sizes that halve evenly.
        # An average of 2×2 has no values of a single one, in some engines.
        averages = any(
            isinstance(m, nn.AvgPool2d) and m.stride != 1 for m in self.network.modules()
        )
        choices = (
            (1, coarsest, coarsest + 1 if averages else 1),
            (1, coarsest, coarsest + 1),
            (0, coarsest, 1),
            (0, 2 * coarsest, 1),
        )
        for extra, pad_to, least in choices[0 if self.align_corners else 2 :]:
            self._extra, self._pad_to, self._least = extra, pad_to, least
            calls: list[LayerShift] = []
            try:
                with _evaluating(self):
                    small = self(torch.zeros(1, 3, *_PROBE_SIZES[0], device=device))
                    outputs = [small, self(torch.zeros(1, 3, 1, 1, device=device))]
                    rows = 8 * pad_to + extra
                    with record_shifts(self.network, calls):
                        self.network(torch.zeros(1, 3, rows, rows, device=device))
            except (RuntimeError, AssertionError, ValueError) as error:
                problem = str(error).splitlines()[0] if str(error) else type(error).__name__
                continue
            strides = self._reductions + [asked] * self._joins_branches
            expected = [
                [tuple(self._count(n, s) for n in size) for s in strides] for size in _PROBE_SIZES
            ]
            shapes = [[tuple(f.shape[-2:]) for f in found] for found in outputs]
            if shapes == expected and strides[-1] == asked:
                if self.align_corners:
                    found = offsets(calls, rows, strides, patches=not extra)
                else:
                    found = [(stride - 1) / 2 for stride in strides]
                return [f.shape[1] for f in outputs[0]], strides, found
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
                raise UserError(
                    f"cannot fetch the weights of {name!r}: {error} Without a connection: give a "
                    "file (weights=FILE, model.weights FILE), or null to begin from nothing"
                ) from None
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
