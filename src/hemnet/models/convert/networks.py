"""Map the layers of other projects' networks to ours."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hemnet.errors import UserError
from hemnet.models.convert.checkpoint import named_tensors, read_checkpoint
from hemnet.models.convert.facts import EMANET, Facts, read_meta
from hemnet.models.convert.tensors import Tensors
from hemnet.models.registry import make_config
from hemnet.models.segmenter import ModelConfig, Segmenter

_DEPTHS = {(3, 4, 6, 3): 50, (3, 4, 23, 3): 101, (3, 8, 36, 3): 152}
_STEM_CONVS = tuple(f"backbone.network.conv1.{i}" for i in (0, 3, 6))
_STEM_NORMS = (*(f"backbone.network.conv1.{i}" for i in (1, 4)), "backbone.network.bn1")
# A deep stem's widths → what timm adds to the name of such a ResNet.
_STEMS: dict[tuple[int, ...], str] = {(64, 64, 128): "s", (32, 32, 64): "c"}
_BACKBONE_ALONE = (
    "Its backbone alone can start a network of ours: model.weights FILE with "
    "model.backbone resnet50c (resnet101c …; resnet50 without a deep stem)"
)
_POOLED = "(average-pooled shortcuts, as in ResNet-D)"


@dataclass(frozen=True)
class Conversion:
    """A converted model, in evaluation mode.

    Attributes:
        dropped: names of tensors that only training needs and that our model has no place for.
    """

    model: Segmenter
    facts: Facts
    dropped: tuple[str, ...]


# The name of our head, its convolution that has its `channels`, and its options.
HeadFound = tuple[str, str | None, dict[str, Any]]


@dataclass(frozen=True)
class Network:
    """What a layout finds: arguments of `create_model`."""

    name: str
    backbone: str
    channels: int | None
    options: dict[str, Any]


def convert(
    path: str | Path,
    source: str,
    *,
    config: str | None = None,
    ignore: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    palette: Sequence[Sequence[int]] | None = None,
    output_stride: int | None = None,
    align_corners: bool | None = None,
    multi_grid: Sequence[int] | None = None,
) -> Conversion:
    """A model with another project's weights. Nothing in the file is executed.

    Args:
        path: the checkpoint.
        source: "emanet" or "mmseg".
        config: the text of mmsegmentation's configuration, where the checkpoint holds none.
        ignore: patterns of names to leave out.
        classes, palette: saved with the model, where the file does not say.
        output_stride, align_corners, multi_grid: see `create_model`; where the file does not say
            or is wrong.
    """
    path = Path(path)
    if source not in SOURCES:
        raise UserError(f"there is no source {source!r}; choose from {', '.join(SOURCES)}")
    content = read_checkpoint(path)
    anchor, layout = SOURCES[source]
    tensors = _without_prefix(named_tensors(content), anchor, path, source)
    dropped = [k for k in tensors.left if any(fnmatchcase(k, pattern) for pattern in ignore)]
    tensors.drop(*dropped)
    facts = EMANET
    try:
        if source == "mmseg":
            facts, known = read_meta(content.get("meta"), config)
            facts = facts.given(align_corners=align_corners)
            if not known and config is not None:
                raise UserError("the configuration has no `model = dict(…)`: give a complete one")
            if facts.align_corners is None:
                raise UserError(
                    "it holds no configuration. Give the one that it was trained with as `config`, "
                    "or at least `align_corners` (true where the crop is of k·8 + 1 pixels, such "
                    "as 769×769; false for 512×1024 and 512×512)"
                )
        facts = facts.given(
            output_stride=output_stride or facts.output_stride or 8,
            align_corners=align_corners,
            multi_grid=None if multi_grid is None else tuple(multi_grid),
            classes=facts.classes if classes is None else tuple(classes),
            palette=facts.palette if palette is None else tuple(map(tuple, palette)),
        )
        network, more = layout(tensors, facts)
    except UserError as error:
        raise UserError(f"{path} cannot be converted: {error}.") from None
    described, facts = _config(network, facts, tensors, told=classes is not None)
    model = Segmenter(described).eval()
    if facts.bgr:
        _turn_channels(tensors)
    model.load_state_dict(tensors.checked(model.state_dict(), path))
    return Conversion(model, facts, tuple(dropped + more))


def _config(
    network: Network, facts: Facts, tensors: Tensors, told: bool
) -> tuple[ModelConfig, Facts]:
    weight = tensors.done.get("head.classifier.1.weight", torch.zeros(1))
    classes, palette = facts.classes, facts.palette
    if not told and classes is not None and len(classes) != len(weight):
        classes = palette = None  # of another data set: the file's own tensors are right
    if palette is not None and len(palette) != len(weight):
        palette = None
    turned = -1 if facts.bgr else 1
    config = make_config(
        network.name,
        num_classes=len(weight),
        backbone=network.backbone,
        output_stride=facts.output_stride,
        channels=network.channels,
        multi_grid=facts.multi_grid,
        resnet_v1=facts.resnet_v1,
        align_corners=facts.align_corners,
        auxiliary="auxiliary.classifier.1.weight" in tensors.done,
        classes=classes,
        palette=palette,
        mean=facts.mean[::turned],
        std=facts.std[::turned],
        options=network.options | {"dropout": facts.dropout},
    )
    return config, facts.given(classes=classes)


def _without_prefix(given: dict[str, Tensor], anchor: str, path: Path, source: str) -> Tensors:
    """The tensors by their names inside the network, without prefixes such as `module.`."""
    found = next((key for key in given if key.endswith(anchor)), None)
    if found is None:
        close = difflib.get_close_matches(anchor, given, 3, 0) or ["none"]
        raise UserError(
            f"{path} is not a checkpoint of {source}: none of its {len(given)} tensors is called "
            f"{anchor}; there are {', '.join(close)}"
        )
    prefix = found[: -len(anchor)]
    return Tensors({k.removeprefix(prefix): v for k, v in given.items()})


def _turn_channels(tensors: Tensors) -> None:
    """Reorder the first convolution's input channels from BGR to RGB."""
    for key in ("conv1.weight", "conv1.0.weight"):
        name = f"backbone.network.{key}"
        if name in tensors.done:
            tensors.done[name] = tensors.done[name].flip(1)


def _emanet(tensors: Tensors, facts: Facts) -> tuple[Network, list[str]]:
    """`extractor.0` … `extractor.7` are stem, batch norm, ReLU, pool and four stages."""
    backbone = _resnet(tensors, facts, "extractor.0", [f"extractor.{i}" for i in range(4, 8)])
    deep = backbone.endswith(tuple(_STEMS.values()))
    stem_norms = _STEM_NORMS[:2] if deep else ()
    stem = _STEM_CONVS if deep else ("backbone.network.conv1",)
    tensors.move("extractor.0", stem, stem_norms)
    tensors.move("extractor.1", norms=["backbone.network.bn1"])
    _conv_norm(tensors, "fc0", "head.reduce")
    _bases(tensors, "emau.mu")
    tensors.move("emau.conv1", ["head.attention.conv_in"])
    tensors.move("emau.conv2", ["head.attention.conv_out"], ["head.attention.norm"])
    _conv_norm(tensors, "fc1", "head.mix")
    tensors.move("fc2", ["head.classifier.1"])
    channels = _size(tensors, "head.reduce.0.weight")
    return Network("emanet", backbone, channels, _ema_options(tensors, facts)), []


def _mmseg(tensors: Tensors, facts: Facts) -> tuple[Network, list[str]]:
    """`backbone` a ResNet, `decode_head` one of HEADS, `auxiliary_head` for training."""
    head = next((build for mark, build in _HEADS.items() if tensors.has(f"decode_head.{mark}")), "")
    if not tensors.has("backbone.layer4"):
        raise UserError("its backbone is not one of mmsegmentation's ResNets")
    if isinstance(head, str):
        reason = head or "its head is none that hemnet has"
        raise UserError(f"{reason}. {_BACKBONE_ALONE}")
    eps, head_eps = facts.eps
    deep = tensors.has("backbone.stem")
    first = "backbone.stem" if deep else "backbone.conv1"
    stages = [f"backbone.layer{i}" for i in range(1, 5)]
    backbone = _resnet(tensors, facts, first, stages, eps)
    if deep:
        tensors.move("backbone.stem", _STEM_CONVS, _STEM_NORMS, eps)
    else:
        tensors.rename("backbone.conv1", "backbone.network.conv1")
        tensors.rename("backbone.bn1", "backbone.network.bn1", eps)
    name, first_conv, options = head(tensors, facts, head_eps)
    tensors.move("decode_head.conv_seg", ["head.classifier.1"])
    dropped = _auxiliary(tensors, head_eps)
    weight = tensors.done.get("head.classifier.1.weight")
    if weight is not None and len(weight) == 1:
        raise UserError("it has one logit and a threshold; ours has a logit for each class")
    if name == "danet":  # two more classifiers, one for each branch's loss
        dropped += tensors.drop("decode_head.pam_conv_seg.", "decode_head.cam_conv_seg.")
    channels = None if first_conv is None else _size(tensors, f"{first_conv}.0.weight")
    return Network(name, backbone, channels, options), dropped


def _resnet(
    tensors: Tensors, facts: Facts, stem: str, stages: Sequence[str], eps: float = 1e-5
) -> str:
    """Move the stages, whose layers have timm's names; returns timm's name of the network."""
    counts = tuple(len(tensors.children(stage)) for stage in stages)
    if not any(tensors.has(f"{stages[0]}.0.{kind}3") for kind in ("conv", "bn")):
        raise UserError("its ResNet has basic blocks, which are dilated otherwise than ours")
    if counts not in _DEPTHS:
        raise UserError(f"its ResNet has {counts} blocks: there are {', '.join(map(str, _DEPTHS))}")
    convs = [
        shape[0]
        for name in tensors.children(stem)
        if len(shape := tensors.shape(f"{stem}.{name}.weight")) == 4
    ]
    suffix = _STEMS.get(tuple(convs), "")
    if convs and not suffix:
        raise UserError(f"its stem has convolutions of {convs} channels: there are {list(_STEMS)}")
    pooled = tensors.has(f"{stages[1]}.0.downsample.2")
    if pooled:
        if suffix != "c" or facts.output_stride != 32:
            raise UserError(
                f"its backbone {_POOLED} is timm's resnet{_DEPTHS[counts]}d at stride 32 only"
            )
        suffix = "d"
    for number, stage in enumerate(stages, 1):
        tensors.rename(stage, f"backbone.network.layer{number}", eps)
    return f"resnet{_DEPTHS[counts]}{suffix}"


def _conv_norm(tensors: Tensors, source: str, target: str, eps: float = 1e-5) -> None:
    """Convolution, batch norm (and ReLU): our `conv_bn_relu`."""
    tensors.move(source, [f"{target}.0"], [f"{target}.1"], eps)


def _bases(tensors: Tensors, source: str) -> None:
    bases = tensors.take(source)
    if bases is None:
        return
    if bases.ndim != 3 or len(bases) != 1:
        raise UserError(f"{source} has the shape {tuple(bases.shape)}, not (1, channels, bases)")
    tensors.done["head.attention.bases.value"] = bases[0].mT.contiguous()


def _size(tensors: Tensors, name: str, axis: int = 0) -> int:
    """Size of a moved tensor; 1 where it is missing, which is reported later."""
    tensor = tensors.done.get(name)
    return 1 if tensor is None or tensor.ndim <= axis else tensor.shape[axis]


def _attention_options(tensors: Tensors) -> dict[str, Any]:
    return {
        "mixed": _size(tensors, "head.mix.0.weight"),
        "concatenate": "head.join.0.weight" in tensors.done,
    }


def _ema_options(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    bases = _size(tensors, "head.attention.bases.value")
    own = {"bases": bases, "iterations": facts.iterations, "decay": facts.decay}
    return _attention_options(tensors) | own


def _join(tensors: Tensors, eps: float) -> None:
    if tensors.has("decode_head.conv_cat"):
        _conv_norm(tensors, "decode_head.conv_cat", "head.join", eps)


def _ema_head(tensors: Tensors, facts: Facts, eps: float) -> HeadFound:
    _conv_norm(tensors, "decode_head.ema_in_conv", "head.reduce", eps)
    _bases(tensors, "decode_head.ema_module.bases")
    unit = "head.attention"
    tensors.move("decode_head.ema_mid_conv", [f"{unit}.conv_in"])
    tensors.move("decode_head.ema_out_conv", [f"{unit}.conv_out"], [f"{unit}.norm"], eps)
    _conv_norm(tensors, "decode_head.bottleneck", "head.mix", eps)
    _join(tensors, eps)
    return "emanet", "head.reduce", _ema_options(tensors, facts)


def _non_local_head(tensors: Tensors, facts: Facts, eps: float) -> HeadFound:
    """Theirs has no ReLU after the sum with the input."""
    _conv_norm(tensors, "decode_head.convs.0", "head.reduce", eps)
    for theirs, ours in (("theta", "query"), ("phi", "key"), ("g", "value")):
        tensors.move(f"decode_head.nl_block.{theirs}", [f"head.attention.{ours}"])
    _conv_norm(tensors, "decode_head.nl_block.conv_out", "head.attention.out", eps)
    _conv_norm(tensors, "decode_head.convs.1", "head.mix", eps)
    _join(tensors, eps)
    return "nonlocal", "head.reduce", _attention_options(tensors) | {"activation": False}


def _psp_head(tensors: Tensors, facts: Facts, eps: float) -> HeadFound:
    for i in range(4):
        _conv_norm(tensors, f"decode_head.psp_modules.{i}", f"head.pools.{i}", eps)
    _conv_norm(tensors, "decode_head.bottleneck", "head.mix", eps)
    return "pspnet", "head.mix", {}


def _dual_head(tensors: Tensors, facts: Facts, eps: float) -> HeadFound:
    for kind, branch in (("pam", "position"), ("cam", "channel")):
        _conv_norm(tensors, f"decode_head.{kind}_in_conv", f"head.{branch}.0", eps)
        scale = tensors.take(f"decode_head.{kind}.gamma.scale")
        if scale is not None:
            tensors.done[f"head.{branch}.1.scale"] = scale
        _conv_norm(tensors, f"decode_head.{kind}_out_conv", f"head.{branch}.2", eps)
    for part in ("query", "key", "value"):
        tensors.move(f"decode_head.pam.{part}_project", [f"head.position.1.{part}"])
    return "danet", "head.position.0", {}


def _fcn_head(tensors: Tensors, facts: Facts, eps: float) -> HeadFound:
    for i in range(2):
        _conv_norm(tensors, f"decode_head.convs.{i}", f"head.convolutions.{i}", eps)
    _join(tensors, eps)
    options = {
        "hidden": _size(tensors, "head.convolutions.0.0.weight"),
        "mixed": _size(tensors, "head.convolutions.1.0.weight"),
        "concatenate": "head.join.0.weight" in tensors.done,
    }
    return "fcn", None, options


def _auxiliary(tensors: Tensors, eps: float) -> list[str]:
    """Ours has one convolution to 256 channels; others are dropped, as only training needs them."""
    prefix, conv = "auxiliary_head.", "auxiliary_head.convs.0.conv.weight"
    fits = len(tensors.children("auxiliary_head.convs")) == 1 and not tensors.has(
        "auxiliary_head.conv_cat"
    )
    if not fits or tensors.shape(conv) != (256, 1024, 3, 3):
        return tensors.drop(prefix)
    _conv_norm(tensors, "auxiliary_head.convs.0", "auxiliary.reduce", eps)
    tensors.move("auxiliary_head.conv_seg", ["auxiliary.classifier.1"])
    return []


# A name that only this head has → how its layers are moved, or why they cannot be.
_HEADS: dict[str, Callable[[Tensors, Facts, float], HeadFound] | str] = {
    "ema_module": _ema_head,
    "nl_block": _non_local_head,
    "pam": _dual_head,
    "lateral_convs": "hemnet has no UPerNet",
    "psp_modules": _psp_head,
    "attention_p": "PSANet's projection there pads a 1×1 convolution with zeros, so that its "
    "attention maps are two features larger than ours, and it shrinks by interpolation",
    "sep_bottleneck": "DeepLabV3+ there has depthwise separable convolutions and a 3×3 "
    "convolution after the pyramid; ours has dense convolutions and a 1×1",
    "aspp_modules": "hemnet has DeepLabV3+, not DeepLabV3 without its decoder",
    "convs": _fcn_head,
}
Layout = Callable[[Tensors, Facts], tuple[Network, list[str]]]
# A tensor that every checkpoint of the kind has, and its layout.
SOURCES: dict[str, tuple[str, Layout]] = {
    "emanet": ("emau.mu", _emanet),
    "mmseg": ("decode_head.conv_seg.weight", _mmseg),
}
