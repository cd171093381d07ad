"""The loss of one optimizer step, however its pixels are split.

A step's loss is a sum over pixels divided by their total weight. The total is known before the
first forward pass, so passes (accumulation) and processes (data parallelism) each add their part
of one and the same mean, whatever share of void their images have. A loss of regions (Dice,
Lovász) is one number for an image, which counts as much as the image's pixels weigh. `average:
all` is EMANet's mean: a void pixel counts as one with a loss of 0, and class weights are not
divided out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hemnet.data import VOID
from hemnet.errors import UserError
from hemnet.training.config import LossConfig
from hemnet.training.region_losses import REGIONS

PIXELS = ("cross_entropy", "focal")


class SegmentationLoss(nn.Module):
    """Weighted sums of losses; `ohem` keeps the hardest share of every image's pixels."""

    weights: Tensor | None

    def __init__(self, config: LossConfig, num_classes: int) -> None:
        super().__init__()
        given = config.class_weights
        assert given != "auto", "`balanced` finds them in the data"
        if given is not None and len(given) != num_classes:
            raise UserError(
                f"loss.class_weights has {len(given)} numbers, but the data has {num_classes} "
                "classes: expected one for each"
            )
        self.auxiliary, self.ohem, self.stride = config.auxiliary, config.ohem, config.stride
        self.over_all = config.mean_over == "all"
        self.pixels = {k: v for k, v in config.terms.items() if k in PIXELS and v}
        self.regions = {k: v for k, v in config.terms.items() if k in REGIONS and v}
        self.gamma = config.focal_gamma
        self.register_buffer("weights", None if given is None else torch.tensor(given))

    def total(self, masks: Tensor) -> Tensor:
        """The weight of the pixels of masks: B,H,W that will count."""
        return self._shares(self._strided(masks)).sum()

    def _shares(self, masks: Tensor) -> Tensor:
        """The weight of each image: B."""
        wide = torch.float32 if masks.device.type == "mps" else torch.float64
        if self.over_all:  # of equal weight, whatever their class
            pixels = masks[0].numel()
            kept = pixels if self.ohem is None else math.ceil(self.ohem * pixels)
            return torch.full((len(masks),), kept, dtype=wide, device=masks.device)
        known = masks != VOID
        if self.weights is None:
            weight = known.flatten(1).sum(1).to(wide)  # B
        else:
            weights = self.weights.to(masks.device)[torch.where(known, masks, 0)] * known
            weight = weights.to(wide).flatten(1).sum(1)
        if self.ohem is not None:
            weight = weight * self.ohem
            weight = weight.ceil() if self.weights is None else weight
        return weight

    def forward(self, logits: Tensor, masks: Tensor) -> Tensor:
        """Sum over the pixels that count. logits: B,K,h,w at every stride-th of masks: B,H,W."""
        masks = self._strided(masks)
        # Softmax in float32, whatever the autocast type.
        logits = logits.float()
        loss = logits.new_zeros(())
        if self.pixels:
            loss = loss + self._of_pixels(logits, masks)
        if self.regions:
            loss = loss + self._of_regions(logits, masks)
        return loss

    def _of_pixels(self, logits: Tensor, masks: Tensor) -> Tensor:
        whole = self.pixels.get("cross_entropy", 0.0)
        plain = self.ohem is None and "focal" not in self.pixels
        losses = F.cross_entropy(
            logits, masks, self.weights, ignore_index=VOID, reduction="sum" if plain else "none"
        )
        if plain:
            return whole * losses
        if "focal" in self.pixels:
            # 1 − p of the label, from the unweighted entropy: no second softmax.
            entropy = F.cross_entropy(logits, masks, ignore_index=VOID, reduction="none")
            # 1 − p is 0 where the network is sure, and its power has no gradient there.
            wrong = (-torch.expm1(-entropy)).clamp(min=1e-8)
            losses = losses * (whole + self.pixels["focal"] * wrong**self.gamma)
        else:
            losses = whole * losses
        if self.ohem is None:
            return losses.sum()
        kept = []
        for loss, known in zip(losses.flatten(1), (masks != VOID).flatten(1), strict=True):
            if self.over_all:  # void is 0 here
                known = torch.ones_like(known)
            count = math.ceil(self.ohem * int(known.sum()))
            kept.append(loss[known].topk(count, sorted=False).values.sum())
        return torch.stack(kept).sum()

    def _of_regions(self, logits: Tensor, masks: Tensor) -> Tensor:
        shares = self._shares(masks).to(logits.dtype)
        loss = logits.new_zeros(())
        for part, mask, share in zip(logits, masks, shares, strict=True):
            known = mask != VOID
            if not known.any():
                loss = loss + 0 * part.sum()  # every process needs a gradient
                continue
            probabilities = part[:, known].softmax(0)  # K,N
            for name, weight in self.regions.items():
                found = REGIONS[name](probabilities, mask[known], self.weights)
                loss = loss + weight * share * found
        return loss

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
