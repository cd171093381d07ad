"""Facts about a network that its checkpoint's tensors do not tell.

mmsegmentation saves it as the text of the configuration (`meta.config`, later `meta.cfg`). Of
EMANet's own checkpoints it is known from the papers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hemnet.errors import UserError
from hemnet.models.convert.settings_text import find_typed, read_settings
from hemnet.models.convert.tensors import EPS

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Dilations of the blocks of a ResNet's last stage, the first and the others.
LAST_STAGE = {8: (2, 4), 16: (1, 2), 32: (1, 1)}
_STRIDES = {8: (1, 2, 1, 1), 16: (1, 2, 2, 1), 32: (1, 2, 2, 2)}
_DILATIONS = {8: (1, 1, 2, 4), 16: (1, 1, 1, 2), 32: (1, 1, 1, 1)}


@dataclass(frozen=True)
class Facts:
    """None where unknown; see `create_model` for those not listed.

    Attributes:
        bgr: the images' channels are blue, green, red.
        eps: of the batch norms, in the backbone and in the heads.
        iterations: of EM.
        decay: of the bases.
        dropout: of the classifier.
    """

    output_stride: int | None = None
    align_corners: bool | None = None
    multi_grid: tuple[int, ...] | None = None
    resnet_v1: bool = False
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    bgr: bool = False
    eps: tuple[float, float] = (EPS, EPS)
    iterations: int = 3
    decay: float = 0.9
    dropout: float = 0.1
    classes: tuple[str, ...] | None = None
    palette: tuple[tuple[int, ...], ...] | None = None

    def given(self, **chosen: Any) -> Facts:
        """Overridden by what the user gave."""
        return replace(self, **{k: v for k, v in chosen.items() if v is not None})


# Stride 8 is that of the published models; logits lie on a grid of k·8 + 1 pixels.
EMANET = Facts(output_stride=8, align_corners=True, multi_grid=(1, 2, 4))


def read_meta(meta: Any, text: str | None = None) -> tuple[Facts, bool]:
    """Of the `meta` of mmsegmentation's checkpoint, or the text of its configuration.

    The second is whether a configuration was found.
    """
    meta = meta if isinstance(meta, Mapping) else {}
    if text is None:
        text = next((meta[k] for k in ("cfg", "config") if isinstance(meta.get(k), str)), "")
    settings = read_settings(text)
    described = meta.get("dataset_meta")
    described = described if isinstance(described, Mapping) else {}
    facts = Facts(
        classes=_names(described.get("classes", meta.get("CLASSES"))),
        palette=_colours(described.get("palette", meta.get("PALETTE"))),
    )
    model = settings.get("model")
    if not isinstance(model, dict):
        return facts, False
    try:
        return _read_model(facts, model, settings), True
    except (TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
        raise UserError(
            f"the configuration in this checkpoint is not understood ({error}). Give a complete "
            "one, as mmsegmentation writes it into its work folder, as `config`."
        ) from None


def _read_model(facts: Facts, model: dict[str, Any], settings: dict[str, Any]) -> Facts:
    backbone, head = model["backbone"], model["decode_head"]
    strides = tuple(backbone.get("strides", (1, 2, 2, 2)))
    stride = 4 * math.prod(strides)
    dilations = tuple(backbone.get("dilations", (1, 1, 1, 1)))
    if _STRIDES.get(stride) != strides or _DILATIONS[stride] != dilations:
        raise UserError(
            f"its backbone has strides {strides} and dilations {dilations}: ours has "
            f"{_choices(_STRIDES, _DILATIONS)}"
        )
    if stride < 32 and not backbone.get("contract_dilation", False):
        raise UserError(
            "its backbone has contract_dilation=False: the first block of each of our dilated "
            "stages has the dilation of the stage before it"
        )
    for name, default in (
        ("kernel_size", 3),
        ("dilation", 1),
        ("reduction", 2),
        ("mode", "embedded_gaussian"),
        ("use_scale", True),
        ("pool_scales", (1, 2, 3, 6)),
        ("input_transform", None),
    ):
        value = head.get(name, default)
        if (tuple(value) if isinstance(value, list) else value) != default:
            raise UserError(f"its head has {name}={value}, ours has {default}")
    return replace(
        facts,
        output_stride=stride,
        align_corners=bool(head.get("align_corners", False)),
        multi_grid=_multi_grid(backbone.get("multi_grid"), stride),
        resnet_v1=backbone.get("style", "pytorch") == "caffe",
        eps=(_eps(backbone), _eps(head)),
        iterations=int(head.get("num_stages", 3)),
        decay=1 - float(head.get("momentum", 0.1)),
        dropout=float(head.get("dropout_ratio", 0.1)),
        **_normalisation(model, settings),
    )


def _multi_grid(rates: Any, stride: int) -> tuple[int, ...] | None:
    """Convert their rates, which are dilations, to ours, which multiply those of the stage."""
    if rates is None:
        return None
    first, others = LAST_STAGE[stride]
    own = [first, *[others] * (len(rates) - 1)]
    if any(rate % base for rate, base in zip(rates, own, strict=True)):
        raise UserError(f"its multi_grid {tuple(rates)} is not a multiple of our dilations {own}")
    return tuple(rate // base for rate, base in zip(rates, own, strict=True))


def _eps(part: dict[str, Any]) -> float:
    norm = part.get("norm_cfg") or {}
    if norm.get("type", "BN") not in ("BN", "SyncBN", "BN2d", "MMSyncBN"):
        raise UserError(f"it is normalised by {norm['type']}, ours by batch norms")
    return float(norm.get("eps", EPS))


def _normalisation(model: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Mean and std of images of 0–255, from where each version of mmsegmentation keeps them."""
    found = model.get("data_preprocessor") or settings.get("data_preprocessor")
    if not (isinstance(found, dict) and found.get("mean")):
        found = settings.get("img_norm_cfg") or find_typed(settings, "Normalize")
    if not (isinstance(found, dict) and found.get("mean")):
        return {}
    # Files are read as BGR; one of these turns them to RGB.
    turned = found.get("bgr_to_rgb", found.get("to_rgb", False))
    return {
        "mean": tuple(float(v) / 255 for v in found["mean"]),
        "std": tuple(float(v) / 255 for v in found["std"]),
        "bgr": not turned,
    }


def _names(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, list | tuple) and value and all(isinstance(v, str) for v in value):
        return tuple(value)
    return None


def _colours(value: Any) -> tuple[tuple[int, ...], ...] | None:
    def fits(colour: Any) -> bool:
        sized = isinstance(colour, list | tuple) and len(colour) == 3
        return sized and all(type(v) is int and 0 <= v <= 255 for v in colour)

    if isinstance(value, list | tuple) and value and all(fits(colour) for colour in value):
        return tuple(tuple(colour) for colour in value)
    return None


def _choices(strides: Mapping[int, Sequence[int]], dilations: Mapping[int, Sequence[int]]) -> str:
    return ", ".join(f"{tuple(strides[s])} and {tuple(dilations[s])}" for s in strides)
