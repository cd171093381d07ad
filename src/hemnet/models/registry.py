"""Models by name: `create_model("hemnet", num_classes=21, backbone="resnet101s", …)`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from hemnet.errors import UserError
from hemnet.limits import MAX_ITERATIONS
from hemnet.models.segmenter import ModelConfig, Segmenter
from hemnet.nn.attention import PRESETS
from hemnet.nn.heads import HEADS
from hemnet.renamed_options import current_options

# Of a head: what `create_model` has as arguments of its own, or the unit takes.
_NOT_OPTIONS = ("self", "features", "num_classes", "channels", "unit")


def list_models() -> list[str]:
    """Names that `create_model` knows."""
    return list(HEADS)


def create_model(
    name: str,
    num_classes: int = 21,
    backbone: str = "resnet101s",
    output_stride: int = 8,
    channels: int | None = None,
    weights: str | Path | None = None,
    *,
    partial_weights: bool = False,
    multi_grid: Sequence[int] | Literal["auto"] | None = "auto",
    resnet_v1: bool = False,
    align_corners: bool = True,
    auxiliary: bool = False,
    classes: Sequence[str] | None = None,
    palette: Sequence[Sequence[int]] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **options: Any,
) -> Segmenter:
    """A segmentation model: backbone, head, up-sampling.

    Args:
        name: of the head, see `list_models`.
        num_classes: channels of the logits.
        backbone: a timm name, or a ResNet with a deep stem such as "resnet101s".
        output_stride: 8, 16 or 32.
        channels: width of the head; None for the paper's (512 for HEMNet).
        weights: of the backbone: None, "imagenet" (timm's, from the hub), or a local
            `.safetensors` or `.pth` file with timm's or torchvision's names.
        partial_weights: take a file of weights that lacks more than a tenth of the backbone's.
        multi_grid: dilation rates of a ResNet's last stage; "auto" is 1, 2, 4 for `resnet*s`.
        resnet_v1: stride in the first 1×1 convolution of a block, for weights trained so.
        align_corners: False for weights trained with up-sampling of that kind, as most of
            mmsegmentation's: a feature is the middle of a cell, not its first pixel.
        auxiliary: add an auxiliary head, for a training loss.
        classes: names of the classes, saved with the model.
        palette: RGB colours of the classes, saved with the model.
        mean: of the images' RGB in 0 … 1; follows the weights where None.
        std: of the images' RGB in 0 … 1; follows the weights where None.
        options: of the head; for HEMNet the arguments of `HighwayEMAttention`, such as
            `iterations`, `step_size`, `bases` or `preset="paper"`.

    Examples:
        >>> import torch
        >>> model = create_model("hemnet", 21, backbone="resnet18", output_stride=16, channels=64)
        >>> model(torch.randn(2, 3, 65, 97)).shape
        torch.Size([2, 21, 65, 97])
    """
    config = make_config(
        name,
        num_classes=num_classes,
        backbone=backbone,
        output_stride=output_stride,
        channels=channels,
        multi_grid=multi_grid,
        resnet_v1=resnet_v1,
        align_corners=align_corners,
        auxiliary=auxiliary,
        classes=classes,
        palette=palette,
        mean=mean,
        std=std,
        options=options,
    )
    if weights is not None and not isinstance(weights, str | Path):
        raise UserError(f'weights must be None, "imagenet" or a file, not {weights!r}')
    return Segmenter(config, weights, partial_weights)


def make_config(name: str, **fields: Any) -> ModelConfig:
    """A checked and complete configuration, from arguments or from a `config.json`."""
    if name not in HEADS:
        raise UserError(f"there is no model {name!r}; choose from {', '.join(HEADS)}")
    num_classes = _whole(fields.pop("num_classes"), "num_classes")
    defaults, default_channels = head_options(name)
    options = current_options(dict(fields.pop("options", None) or {}))
    unknown = [key for key in options if key not in defaults]
    if unknown:
        raise UserError(
            f"model {name!r} has no option {unknown[0]!r}; its options are "
            f"{', '.join((['channels'] if default_channels else []) + list(defaults))}"
        )
    channels = fields.pop("channels")
    if default_channels is None and channels is not None:
        raise UserError(f"model {name!r} has no channels to choose: it is a plain classifier")
    channels = channels if channels is not None else default_channels
    multi_grid = fields.pop("multi_grid")
    for flag in ("resnet_v1", "align_corners", "auxiliary"):
        if not isinstance(fields[flag], bool):
            raise UserError(f"{flag} must be true or false, not {fields[flag]!r}")
    return ModelConfig(
        model=name,
        num_classes=num_classes,
        channels=None if channels is None else _whole(channels, "channels"),
        multi_grid=multi_grid if multi_grid in ("auto", None) else _tuple(multi_grid, "multi_grid"),
        options=_plain_options(defaults | resolve_preset(name, options)),
        classes=_classes(fields.pop("classes"), num_classes),
        palette=_palette(fields.pop("palette"), num_classes),
        mean=_triple(fields.pop("mean"), "mean"),
        std=_triple(fields.pop("std"), "std"),
        **fields,
    )


def head_options(name: str) -> tuple[dict[str, Any], int | None]:
    """A head's options with their defaults, and its default channels (None where it has none)."""
    parameters = dict(inspect.signature(HEADS[name]).parameters)
    unit = getattr(HEADS[name], "UNIT", None)
    if unit is not None:
        own = inspect.signature(unit).parameters
        parameters |= {key: own[key] for key in own if key != "channels"}
    channels = parameters["channels"].default if "channels" in parameters else None
    return {k: p.default for k, p in parameters.items() if k not in _NOT_OPTIONS}, channels


def resolve_preset(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """A head's options, with those that its preset sets spelled out.

    Presets may change; what a run began with or a model was saved with may not.
    """
    options = current_options(options)
    chosen = (head_options(name)[0] if name in HEADS else {}) | options
    preset = PRESETS.get(str(chosen.get("preset")), {})
    unset = {"variance": "preset"}  # where None says something of its own
    free = {k: value for k, value in preset.items() if chosen.get(k) == unset.get(k)}
    if chosen.get("zero_init") is not None:
        free.pop("gain", None)  # which that decides
    return options | free


def _plain_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options as JSON types."""
    plain = {}
    for key in ("iterations", "eval_iterations"):
        value = options.get(key)
        if isinstance(value, int | float) and value > MAX_ITERATIONS:
            raise UserError(f"{key} must be a whole number from 1 to {MAX_ITERATIONS}")
    for key, value in options.items():
        if isinstance(value, Tensor):
            if value.requires_grad:
                raise UserError(
                    f"{key} of a model is a number or one for each iteration. To learn it, replace "
                    "the unit: model.head.attention = hemnet.HighwayEMAttention(…)"
                )
            value = value.tolist()
        plain[key] = list(value) if isinstance(value, tuple) else value
    return plain


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{name} must be a whole number from 1, not {value!r}")
    return value


def _tuple(value: Any, name: str) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UserError(f"{name} must be a list, not {value!r}")
    return tuple(value)


def _triple(value: Any, name: str) -> tuple[float, ...] | None:
    if value is None:
        return None
    values = _tuple(value, name)
    numbers = all(isinstance(v, int | float) and abs(v) < 1e6 for v in values)
    if len(values) != 3 or not numbers or (name == "std" and min(values) <= 0):
        raise UserError(f"{name} must be three numbers for R, G, B in 0–1, not {value!r}")
    return tuple(float(v) for v in values)


def _classes(value: Any, count: int) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = _tuple(value, "classes")
    if len(names) != count or not all(isinstance(name, str) for name in names):
        raise UserError(f"classes must be {count} names, one for each class, not {value!r}")
    return names


def _palette(value: Any, count: int) -> tuple[tuple[int, int, int], ...] | None:
    if value is None:
        return None
    colours = [_tuple(colour, "a colour of the palette") for colour in _tuple(value, "palette")]
    for colour in colours:
        if len(colour) != 3 or not all(type(v) is int and 0 <= v <= 255 for v in colour):
            raise UserError(f"a colour of the palette must be three bytes, not {list(colour)}")
    if len(colours) != count:
        raise UserError(
            f"palette must have {count} colours, one for each class, not {len(colours)}"
        )
    return tuple((r, g, b) for r, g, b in colours)
