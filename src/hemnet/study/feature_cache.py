"""Cache the features of a frozen backbone over all runs of a process.

Where nothing of a backbone is trained (`model.freeze_stages` at its number of stages) it gives the
same features for the same image. Runs of one seed see the same crops, so training costs the head
alone from the second run of a seed on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hemnet.models.segmenter import Segmenter
from hemnet.nn.backbone import Backbone
from hemnet.training.config import TrainConfig

LIMIT = 2**31  # bytes of features that a process keeps


class FeatureCache:
    """Features by image and backbone; `attach` makes a model use it, if its backbone is frozen."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.kept: dict[bytes, list[Tensor | None]] = {}
        self.room = limit
        self.computed = 0  # images that a backbone had to see
        self._views: tuple[dict[str, Any], int] | None = None

    def __deepcopy__(self, memo: object) -> Self:
        return self  # copies of a model share it

    def expect(self, config: TrainConfig) -> None:
        """Clear the cache unless the next run sees the same crops: same data and seed."""
        views = asdict(config.data), config.run.seed
        if views != self._views:
            self.room += sum(_bytes(features) for features in self.kept.values())
            self.kept.clear()
            self._views = views

    def attach(self, model: Segmenter) -> bool:
        """Make the model use the cache if its backbone never changes; returns whether it does."""
        backbone = model.backbone
        norms = [m for m in backbone.modules() if isinstance(m, _BatchNorm)]
        if any(p.requires_grad for p in backbone.parameters()) or any(m.training for m in norms):
            return False
        model.backbone = CachedBackbone(backbone, self, _used_features(model))
        return True

    def keep(self, key: bytes, features: list[Tensor | None]) -> None:
        size = _bytes(features)
        if size <= self.room:
            self.room -= size
            self.kept[key] = features


class CachedBackbone(Backbone):
    """A backbone, sharing its modules, that computes the features of an image only once."""

    def __init__(self, backbone: Backbone, cache: FeatureCache, used: list[int]) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(backbone.__dict__)
        self.cache, self.used = cache, used
        self.salt = _digest(*backbone.state_dict().values()) + bytes(used)

    def forward(self, images: Tensor) -> list[Any]:
        """The features; those that no head uses are None."""
        keys = [_digest(image, salt=self.salt) for image in images]
        missing = [i for i, key in enumerate(keys) if key not in self.cache.kept]
        fresh: dict[int, list[Tensor | None]] = {}
        if missing:
            self.cache.computed += len(missing)
            with torch.no_grad():
                found = super().forward(images[missing])
            for place, i in enumerate(missing):
                one = slice(place, place + 1)
                fresh[i] = [f[one].clone() if n in self.used else None for n, f in enumerate(found)]
                self.cache.keep(keys[i], fresh[i])
        each = [fresh[i] if i in fresh else self.cache.kept[key] for i, key in enumerate(keys)]
        return [_joined(parts) for parts in zip(*each, strict=True)]


@cache
def shared_cache() -> FeatureCache:
    """The cache of this process, shared by all of its runs."""
    return FeatureCache()


def _bytes(features: list[Tensor | None]) -> int:
    return sum(f.nbytes for f in features if f is not None)


def _joined(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else None  # in their memory layout, unlike a stack


def _used_features(model: Segmenter) -> list[int]:
    """Indices of the feature maps that the heads read; the others are not kept."""
    count = len(model.backbone.channels)
    read: set[int] = set()

    class Recorded(list[Tensor]):
        def __getitem__(self, index: Any) -> Any:
            read.update([index % count] if isinstance(index, int) else range(count)[index])
            return super().__getitem__(index)

        def __iter__(self) -> Iterator[Tensor]:
            read.update(range(count))
            return super().__iter__()

    modes = [(module, module.training) for module in model.modules()]
    weight = next(model.parameters())
    model.eval()
    with torch.no_grad():
        features = Recorded(model.backbone(torch.zeros(1, 3, 64, 64, device=weight.device)))
        for head in (model.head, model.auxiliary):
            if head is not None:
                head(features)
    for module, mode in modes:
        module.training = mode
    return sorted(read)


def _digest(*tensors: Tensor, salt: bytes = b"") -> bytes:
    found = hashlib.blake2b(salt, digest_size=16)
    for tensor in tensors:
        found.update(tensor.detach().contiguous().cpu().numpy().data)
    return found.digest()
