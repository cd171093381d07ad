"""Losses of regions instead of pixels: Dice, and the Lovász extension of the Jaccard index.

Each takes one image, and averages over the classes that its labels have: a class that is not there
has no overlap to speak of.
"""

from __future__ import annotations

import torch
from torch import Tensor


def dice(probabilities: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """1 − 2·|P∩G| / (|P| + |G|) (Milletari et al. 2016). K,N probabilities and N labels."""
    present = labels.unique()
    truth = (labels == present[:, None]).to(probabilities.dtype)  # classes there, N
    found = probabilities[present]
    overlap = (found * truth).sum(1)
    return _mean(1 - 2 * overlap / (found.sum(1) + truth.sum(1)), present, weights)


def lovasz(probabilities: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """The Lovász-softmax loss (Berman et al. 2018): a convex surrogate of 1 − IoU.

    The errors of a class's pixels, largest first, are weighted with how much the Jaccard index
    falls when that pixel joins the wrong ones. K,N probabilities and N labels.
    """
    present = labels.unique()
    losses = []
    for label in present:
        truth = (labels == label).to(probabilities.dtype)
        errors, order = (truth - probabilities[label]).abs().sort(descending=True)
        truth = truth[order]
        total = truth.sum()
        jaccard = 1 - (total - truth.cumsum(0)) / (total + (1 - truth).cumsum(0))
        steps = torch.diff(jaccard, prepend=jaccard.new_zeros(1))
        losses.append(errors @ steps)
    return _mean(torch.stack(losses), present, weights)


def _mean(losses: Tensor, present: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return losses.mean()
    chosen = weights[present]
    return (losses * chosen).sum() / chosen.sum().clamp(min=1e-12)


REGIONS = {"dice": dice, "lovasz": lovasz}
