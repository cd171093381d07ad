"""A frozen backbone says the same of the same image: many runs need to ask it only once.

Where nothing of a backbone is trained (`model.freeze_stages` at its number of stages), its features
are kept for the next run of a process. Runs of one seed see the same crops, so training costs the
head alone from the second run of a seed on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from hemnet.models.segmenter import Segmenter
from hemnet.training.config import TrainConfig

LIMIT = 2**31  # bytes of features that a process keeps


class FeatureStore:
    """Features by image and backbone; `attach` makes a model use it, if its backbone is frozen."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.kept: dict[bytes, list[Tensor | None]] = {}
        self.room = limit
        self.asked = 0  # images that a backbone had to be asked for
        self._views: tuple[dict[str, Any], int] | None = None

    def expect(self, config: TrainConfig) -> None:
        """Forget what there is unless the next run sees the same images; a seed has its crops."""
        views = asdict(config.data), config.run.seed
        if views != self._views:
            self.room += sum(_bytes(features) for features in self.kept.values())
            self.kept.clear()
            self._views = views

    def attach(self, model: Segmenter) -> bool:
        """Whether the model will use the store: it does where its backbone never changes."""
        backbone = model.backbone
        norms = [m for m in backbone.modules() if isinstance(m, _BatchNorm)]
        if any(p.requires_grad for p in backbone.parameters()) or any(m.training for m in norms):
            return False
        owner = _digest(*(v for v in backbone.state_dict().values()))
        own, used = backbone.forward, _used_features(model)

        def forward(images: Tensor) -> list[Any]:
            keys = [_digest(image, salt=owner + bytes(used)) for image in images]
            missing = [i for i, key in enumerate(keys) if key not in self.kept]
            fresh: dict[int, list[Tensor | None]] = {}
            if missing:
                self.asked += len(missing)
                with torch.no_grad():
                    found = own(images[missing])
                for place, i in enumerate(missing):
                    one = slice(place, place + 1)
                    fresh[i] = [f[one].clone() if n in used else None for n, f in enumerate(found)]
                    self._keep(keys[i], fresh[i])
            each = [fresh[i] if i in fresh else self.kept[key] for i, key in enumerate(keys)]
            return [_joined(parts) for parts in zip(*each, strict=True)]

        backbone.forward = forward  # type: ignore[method-assign]
        return True

    def _keep(self, key: bytes, features: list[Tensor | None]) -> None:
        size = _bytes(features)
        if size <= self.room:
            self.room -= size
            self.kept[key] = features


@cache
def shared_store() -> FeatureStore:
    """Of this process: all of its runs."""
    return FeatureStore()


def _bytes(features: list[Tensor | None]) -> int:
    return sum(f.nbytes for f in features if f is not None)


def _joined(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else None  # in their memory layout, unlike a stack


def _used_features(model: Segmenter) -> list[int]:
    """Numbers of the feature maps that the heads read: the others need not be kept."""
    count = len(model.backbone.channels)
    seen: set[int] = set()

    class Watched(list[Tensor]):
        def __getitem__(self, index: Any) -> Any:
            seen.update([index % count] if isinstance(index, int) else range(count)[index])
            return super().__getitem__(index)

        def __iter__(self) -> Iterator[Tensor]:
            seen.update(range(count))
            return super().__iter__()

    modes = [(module, module.training) for module in model.modules()]
    weight = next(model.parameters())
    model.eval()
    with torch.no_grad():
        features = Watched(model.backbone(torch.zeros(1, 3, 64, 64, device=weight.device)))
        for head in (model.head, model.auxiliary):
            if head is not None:
                head(features)
    for module, mode in modes:
        module.training = mode
    return sorted(seen)


def _digest(*tensors: Tensor, salt: bytes = b"") -> bytes:
    found = hashlib.blake2b(salt, digest_size=16)
    for tensor in tensors:
        found.update(tensor.detach().contiguous().cpu().numpy().data)
    return found.digest()
