"""PSANet: every position predicts how much it collects from, and distributes to, all the others.

Zhao et al., PSANet: Point-wise Spatial Attention Network for Scene Parsing, ECCV 2018. Two
branches, a mask of 63×63 relative offsets, features shrunk by 2 for the attention.

The masks stay in relative form (one weight per position and offset) until a tile of them is
needed as a matrix, so time and memory grow with positions × offsets, not with positions².
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hemnet.nn.geometry import FeatureInfo, upsample
from hemnet.nn.heads.head import Head, classifier, conv_bn_relu

# Past this many source positions, one tile of targets with its own window is cheaper.
DENSE_POSITIONS = 94 * 94
TILE = 32


class PSAHead(Head):
    """B,C,h,w → B,classes,h,w."""

    def __init__(
        self,
        features: FeatureInfo,
        num_classes: int,
        channels: int = 512,
        mask_size: int = 63,
        shrink: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        inputs = features.channels[-1]
        self.attention = PointwiseSpatialAttention(inputs, channels, mask_size, shrink)
        self.mix = conv_bn_relu(2 * inputs, channels, 3)
        self.classifier = classifier(channels, num_classes, dropout)

    def forward(self, features: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        return self.classifier(self.mix(self.attention(features[-1], mask)))


class PointwiseSpatialAttention(nn.Module):
    """x B,C,h,w → B,2C,h,w: x, and what its positions collected and were given."""

    def __init__(self, channels: int, width: int, mask_size: int, shrink: int) -> None:
        super().__init__()
        if mask_size < 1 or mask_size % 2 == 0:
            raise ValueError(f"mask_size must be odd and positive, not {mask_size}")
        if shrink < 1:
            raise ValueError(f"shrink must be a positive whole number, not {shrink}")
        self.shrink = shrink
        self.collect = _Branch(channels, width, mask_size)
        self.distribute = _Branch(channels, width, mask_size)
        self.project = conv_bn_relu(2 * width, channels)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """`valid`: B,h,w or 1,h,w, the positions that others may look at."""
        height, width = x.shape[-2:]
        step = self.shrink
        # Every step-th position, so that small position i is position step·i at any size.
        valid = None if valid is None else valid[..., ::step, ::step].bool()
        parts = []
        for branch in (self.collect, self.distribute):
            reduced = branch.reduce(x)[..., ::step, ::step]
            mask = crop_mask(branch.mask(reduced), branch.mask_size)
            if branch is self.distribute:
                mask = received(mask)
            parts.append(weighted_sum(normalised(mask, valid), reduced))
        y = self.project(torch.cat(parts, 1))
        y = upsample(y, (height, width), step)
        return torch.cat([x, y], 1)


class _Branch(nn.Module):
    def __init__(self, inputs: int, width: int, mask_size: int) -> None:
        super().__init__()
        self.mask_size = mask_size
        self.reduce = conv_bn_relu(inputs, width)
        self.mask = nn.Sequential(
            conv_bn_relu(width, width), nn.Conv2d(width, mask_size**2, 1, bias=False)
        )


def crop_mask(mask: Tensor, size: int) -> Tensor:
    """B,size²,h,w → B,p,q,h,w: only the offsets that can meet another position."""
    h, w = mask.shape[-2:]
    reach = (size - 1) // 2
    p, q = min(reach, h - 1), min(reach, w - 1)
    mask = mask.unflatten(1, (size, size))
    return mask[:, reach - p : reach + p + 1, reach - q : reach + q + 1]


def received(mask: Tensor) -> Tensor:
    """What each position gives at an offset → what each gets from there. B,p,q,h,w both."""
    for offsets, positions in ((1, 3), (2, 4)):
        p, n = mask.shape[offsets], mask.shape[positions]
        m = mask.flip(offsets).transpose(positions, 4).transpose(offsets, 3)  # …,offset,position
        m = F.pad(m, (p // 2, p // 2))
        # result[o, i] = m[o, i + o]: rows one longer than stored shift each next row by one.
        flat = F.pad(m.flatten(-2), (0, p))
        m = flat.unflatten(-1, (p, n + p))[..., :n]
        mask = m.transpose(offsets, 3).transpose(positions, 4)
    return mask


def normalised(mask: Tensor, valid: Tensor | None = None) -> Tensor:
    """Softmax over the offsets that stay inside the image. B,p,q,h,w both.

    `valid`: B,h,w or 1,h,w, what of the map is image. Elsewhere a position looks at itself.
    """
    p, q, h, w = mask.shape[1:]
    rows, columns = _targets(p, h, mask), _targets(q, w, mask)  # p,h and q,w
    inside = _inside(rows, h)[:, None, :, None] & _inside(columns, w)[None, :, None, :]
    if valid is not None:
        seen = valid[:, rows.clamp(0, h - 1)][..., columns.clamp(0, w - 1)]  # B,p,h,q,w
        own = (rows[:, None, :1, None] == 0) & (columns[None, :, None, :1] == 0)
        inside = inside & (seen.transpose(2, 3) | own)
    scores = mask.masked_fill(~inside, float("-inf")).flatten(1, 2)
    # autocast keeps softmax in float32
    return torch.softmax(scores, 1).to(mask.dtype).view_as(mask)


def _targets(offsets: int, positions: int, like: Tensor) -> Tensor:
    """offsets,positions: position + offset."""
    offset = torch.arange(offsets, device=like.device) - offsets // 2
    return torch.arange(positions, device=like.device) + offset[:, None]


def _inside(targets: Tensor, positions: int) -> Tensor:
    return (targets >= 0) & (targets < positions)


def weighted_sum(mask: Tensor, x: Tensor) -> Tensor:
    """out[i] = Σ_o mask[o, i] · x[i + o]; mask B,p,q,h,w and x B,C,h,w → B,C,h,w."""
    h, w = x.shape[-2:]
    if h * w <= DENSE_POSITIONS:
        return _tile_sum(mask, x, (0, h), (0, w))
    rows = []
    for top in range(0, h, TILE):
        row = [
            _tile_sum(mask, x, (top, min(top + TILE, h)), (left, min(left + TILE, w)))
            for left in range(0, w, TILE)
        ]
        rows.append(torch.cat(row, 3))
    return torch.cat(rows, 2)


def _tile_sum(mask: Tensor, x: Tensor, ys: tuple[int, int], xs: tuple[int, int]) -> Tensor:
    """`weighted_sum` for the targets in rows `ys` and columns `xs`."""
    p, q = mask.shape[1] // 2, mask.shape[2] // 2
    weights = mask[..., ys[0] : ys[1], xs[0] : xs[1]]  # B,p,q,th,tw
    weights = _banded(weights.permute(0, 2, 4, 3, 1))  # B,q,tw,th,th+2p
    weights = _banded(weights.permute(0, 3, 4, 2, 1))  # B,th,th+2p,tw,tw+2q
    window = (max(ys[0] - p, 0), min(ys[1] + p, x.shape[2]))
    sides = (max(xs[0] - q, 0), min(xs[1] + q, x.shape[3]))
    weights = weights[:, :, window[0] - ys[0] + p : window[1] - ys[0] + p]
    weights = weights[..., sides[0] - xs[0] + q : sides[1] - xs[0] + q]
    sources = x[..., window[0] : window[1], sides[0] : sides[1]].flatten(2)  # B,C,S
    matrix = weights.permute(0, 1, 3, 2, 4).flatten(3).flatten(1, 2)  # B,T,S
    out = sources @ matrix.to(sources.dtype).mT
    return out.unflatten(2, (ys[1] - ys[0], xs[1] - xs[0]))


def _banded(rows: Tensor) -> Tensor:
    """…,n,m → …,n,n+m−1 with row i moved right by i, zeros elsewhere.

    Rows padded by n and re-cut one shorter: each next row starts one element later.
    """
    n, m = rows.shape[-2:]
    return F.pad(rows, (0, n)).flatten(-2)[..., : n * (n + m - 1)].unflatten(-1, (n, n + m - 1))
