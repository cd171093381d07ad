"""Adaptive average pooling that can be exported with dynamic sizes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def region_means(x: Tensor, regions: tuple[int, int]) -> Tensor:
    """B,C,h,w → B,C,*regions, the means over regions that cover x and overlap by less than a row.

    `adaptive_avg_pool2d`, and in an export the same as two products: exporters translate that
    pooling wrongly, or not at all, where h and w are unknown.
    """
    if not torch.compiler.is_exporting():
        return F.adaptive_avg_pool2d(x, regions)
    rows, columns = (_weights(n, k, x) for n, k in zip(x.shape[-2:], regions, strict=True))
    return rows @ x @ columns.mT


def _weights(length: int, regions: int, like: Tensor) -> Tensor:
    """regions,length: region i is the mean from ⌊i·length/regions⌋ to ⌈(i+1)·length/regions⌉."""
    region = torch.arange(regions, device=like.device)[:, None]
    place = torch.arange(length, device=like.device)
    first = region * length // regions
    end = ((region + 1) * length + regions - 1) // regions
    inside = (place >= first) & (place < end)
    return inside.to(like.dtype) / (end - first).to(like.dtype)
