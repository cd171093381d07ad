"""Cross-entropy over the pixels of one optimizer step, however they are split.

A step's loss is a sum over pixels divided by their total weight. The total is known before the
first forward pass, so passes (accumulation) and processes (data parallelism) each add their part
of one and the same mean, whatever share of void their images have. `average: all` is EMANet's
mean: a void pixel counts as one with a loss of 0, and class weights are not divided out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hemnet.config import LossConfig
from hemnet.data import VOID
from hemnet.errors import UserError


class SegmentationLoss(nn.Module):
    """Sums of cross-entropy; `ohem` keeps the hardest share of every image's pixels."""

    weights: Tensor | None

    def __init__(self, config: LossConfig, num_classes: int) -> None:
        super().__init__()
        given = config.class_weights
        if given is not None and len(given) != num_classes:
            raise UserError(
                f"loss.class_weights has {len(given)} numbers, but the data has {num_classes} "
                "classes: expected one for each"
            )
        self.auxiliary, self.ohem, self.stride = config.auxiliary, config.ohem, config.stride
        self.over_all = config.average == "all"
        self.register_buffer("weights", None if given is None else torch.tensor(given))

    def total(self, masks: Tensor) -> Tensor:
        """The weight of the pixels of masks: B,H,W that will count."""
        masks = self._strided(masks)
        wide = torch.float32 if masks.device.type == "mps" else torch.float64
        if self.over_all:  # of equal weight, whatever their class
            pixels = masks[0].numel()
            kept = pixels if self.ohem is None else math.ceil(self.ohem * pixels)
            return torch.tensor(len(masks) * kept, dtype=wide, device=masks.device)
        known = masks != VOID
        if self.weights is None:
            weight = known.flatten(1).sum(1).to(wide)  # B
        else:
            weights = self.weights.to(masks.device)[torch.where(known, masks, 0)] * known
            weight = weights.to(wide).flatten(1).sum(1)
        if self.ohem is not None:
            weight = weight * self.ohem
            weight = weight.ceil() if self.weights is None else weight
        return weight.sum()

    def forward(self, logits: Tensor, masks: Tensor) -> Tensor:
        """Sum over the pixels that count. logits: B,K,h,w at every stride-th of masks: B,H,W."""
        masks = self._strided(masks)
        # Softmax in float32, whatever the autocast type.
        logits = logits.float()
        if self.ohem is None:
            return F.cross_entropy(logits, masks, self.weights, ignore_index=VOID, reduction="sum")
        losses = F.cross_entropy(logits, masks, self.weights, ignore_index=VOID, reduction="none")
        kept = []
        for loss, known in zip(losses.flatten(1), (masks != VOID).flatten(1), strict=True):
            if self.over_all:  # void is 0 here
                known = torch.ones_like(known)
            count = math.ceil(self.ohem * int(known.sum()))
            kept.append(loss[known].topk(count, sorted=False).values.sum())
        return torch.stack(kept).sum()

    def of(
        self, model: nn.Module, images: Tensor, masks: Tensor, valid: Tensor | None = None
    ) -> Tensor:
        """The model's loss on a batch, the auxiliary head's included."""
        if not self.auxiliary:
            return self(model(images, stride=self.stride, valid=valid), masks)
        logits, second = model(images, auxiliary=True, stride=self.stride, valid=valid)
        return self(logits, masks) + self.auxiliary * self(second, masks)

    def _strided(self, masks: Tensor) -> Tensor:
        return masks[:, :: self.stride, :: self.stride]
