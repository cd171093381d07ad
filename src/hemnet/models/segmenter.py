"""The segmenter, backbone → head → bilinear upsampling, and its configuration."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from hemnet.errors import UserError
from hemnet.image_io import read_image
from hemnet.models.saving import push_to_hub, save_pretrained
from hemnet.nn.backbone import Backbone
from hemnet.nn.backbone_weights import WeightsReport, load_weights
from hemnet.nn.fuse import fold_batch_norms
from hemnet.nn.geometry import upsample
from hemnet.nn.heads import HEADS, AuxiliaryHead


@dataclass(frozen=True)
class ModelConfig:
    """Everything needed to rebuild a segmenter; `create_model` checks and completes it.

    The fields are the arguments of `create_model`; `model` is its `name`.
    """

    model: str
    num_classes: int
    backbone: str = "resnet101s"
    output_stride: int = 8
    channels: int | None = None  # None for a head that has none (fcn)
    multi_grid: tuple[int, ...] | Literal["auto"] | None = "auto"
    resnet_v1: bool = False
    align_corners: bool = True
    auxiliary: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] | None = None  # None: the backbone's
    std: tuple[float, ...] | None = None
    classes: tuple[str, ...] | None = None
    palette: tuple[tuple[int, int, int], ...] | None = None


class Segmenter(nn.Module):
    """Normalised images B,3,H,W → logits B,num_classes,H,W, for any H and W from 1 up.

    Made by `create_model` and `from_pretrained`. `weights` fills the backbone: None, "imagenet"
    (timm's, from the hub) or a local file.
    """

    weights_report: WeightsReport | None = None  # what a local file gave

    def __init__(
        self,
        config: ModelConfig,
        weights: str | Path | None = None,
        partial_weights: bool = False,
    ) -> None:
        super().__init__()
        self.backbone = Backbone(
            config.backbone,
            config.output_stride,
            config.multi_grid,
            config.resnet_v1,
            pretrained=weights == "imagenet",
            align_corners=config.align_corners,
        )
        features, options = self.backbone.features, dict(config.options)
        if config.channels is not None:
            options["channels"] = config.channels
        try:
            self.head = HEADS[config.model](features, config.num_classes, **options)
        except (TypeError, ValueError) as error:
            raise UserError(f"model {config.model!r}: {error}") from None
        self.auxiliary = AuxiliaryHead(features, config.num_classes) if config.auxiliary else None
        mean, std = self.backbone.mean, self.backbone.std
        if weights is not None and weights != "imagenet":
            report = load_weights(self.backbone.network, weights, partial_weights)
            self.weights_report = report
            mean, std = report.mean or mean, report.std or std
        self.config = replace(
            config,
            multi_grid=self.backbone.multi_grid,
            mean=config.mean or mean,
            std=config.std or std,
        )
        self.fused = False

    @overload
    def forward(
        self,
        images: Tensor,
        auxiliary: Literal[False] = False,
        stride: int = 1,
        valid: Tensor | None = None,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        images: Tensor,
        auxiliary: Literal[True],
        stride: int = 1,
        valid: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def forward(
        self,
        images: Tensor,
        auxiliary: bool = False,
        stride: int = 1,
        valid: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Logits; with `auxiliary=True` also the auxiliary head's, for a training loss.

        `stride` gives the logits of every stride-th pixel alone. `valid` (B,H,W) is False where
        images of different sizes were padded to one: that takes no part in what is pooled over
        an image, such as EM.
        """
        if images.dim() != 4 or images.shape[1] != 3 or not images.is_floating_point():
            raise ValueError(
                "images must be float, normalised, of shape B,3,H,W, not "
                f"{images.dtype} of shape {tuple(images.shape)}"
            )
        height, width = images.shape[-2:]
        features = self.backbone(images)
        logits = self.head(features, self.backbone.mask(images, valid))
        logits = self.upsample(logits, (height, width), stride, self.head.level)
        if not auxiliary:
            return logits
        if self.auxiliary is None:
            raise ValueError("this model has no auxiliary head: create it with auxiliary=True")
        second = self.auxiliary(features)
        return logits, self.upsample(second, (height, width), stride, self.auxiliary.level)

    def upsample(
        self, logits: Tensor, size: Sequence[int], stride: int = 1, level: int = -1
    ) -> Tensor:
        """A head's logits at the pixels of an image, or at every stride-th of them.

        `level` is the number of the backbone's feature whose grid the logits are on.
        """
        step, offset = self.backbone.strides[level], self.backbone.offsets[level]
        if (
            stride > 1 and step % stride == 0 and offset == 0
        ):  # the wanted grid is a coarser one of pixels
            size = [(side - 1) // stride + 1 for side in size]
            return upsample(logits, size, step // stride)
        logits = upsample(logits, size, step, offset)
        return logits[..., ::stride, ::stride]

    def normalise(self, picture: NDArray[np.uint8]) -> Tensor:
        """H,W,3 RGB bytes → 1,3,H,W on the model's device, in its normalisation."""
        weight = next(self.parameters())
        pixels = torch.from_numpy(picture).to(weight.device).permute(2, 0, 1)[None]
        shape = (1, 3, 1, 1)
        mean = torch.tensor(self.config.mean, device=weight.device).view(shape)
        std = torch.tensor(self.config.std, device=weight.device).view(shape)
        return ((pixels.float() / 255 - mean) / std).to(weight.dtype)

    def predict(
        self, image: str | Path | Image.Image | NDArray[Any]
    ) -> NDArray[np.uint8] | NDArray[np.uint16]:
        """The class of every pixel of an image at its own size.

        Args:
            image: a path, a PIL image, or an array H,W,3, H,W,4 (alpha is dropped) or H,W.

        Returns:
            Class ids H,W: uint8, or uint16 beyond 256 classes.
        """
        picture = read_image(image)
        training = self.training
        self.eval()
        try:
            with torch.inference_mode():
                classes = self(self.normalise(picture)).argmax(1)[0].cpu().numpy()
        finally:
            self.train(training)
        return classes.astype(np.uint8 if self.config.num_classes <= 256 else np.uint16)

    def fuse(self) -> Segmenter:
        """A copy for inference with every batch norm folded into its convolution.

        Fastest with `.to(memory_format=torch.channels_last)`. It cannot be trained or saved.
        """
        model = copy.deepcopy(self).eval().requires_grad_(False)
        fold_batch_norms(model)
        model.fused = True
        return model

    def train(self, mode: bool = True) -> Segmenter:
        if mode and getattr(self, "fused", False):
            raise RuntimeError("a fused model has no batch norms left and cannot be trained")
        return super().train(mode)

    def save_pretrained(self, folder: str | Path, half: bool = False) -> Path:
        """Writes `config.json` and `model.safetensors`; `hemnet.from_pretrained` reads them.

        `half`: kernels in half precision, for a file of half the size.
        """
        return save_pretrained(self, folder, half)

    def push_to_hub(self, repo_id: str, private: bool = False) -> str:
        """Uploads what `save_pretrained` writes to the Hugging Face hub; returns the address."""
        return push_to_hub(self, repo_id, private)
