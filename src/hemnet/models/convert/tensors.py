"""Rename a checkpoint's tensors to ours, until none is left."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hemnet.errors import UserError

COUNTER = "num_batches_tracked"
RATE = ".gain.rate"  # how fast the strength of a unit is learned: ours alone, 1 in theirs
OWN = (COUNTER, RATE)
EPS = 1e-5  # of our batch norms
_LISTED = 12

Layer = dict[str, Tensor]  # weight, bias, running_mean …


class Tensors:
    """A checkpoint's tensors on their way into a model of ours.

    `left` shrinks and `done` grows with every `move`; `absent` collects what was looked for in
    vain.
    """

    def __init__(self, given: Mapping[str, Tensor]) -> None:
        self.left = dict(given)
        self.done: dict[str, Tensor] = {}
        self.absent: list[str] = []

    def has(self, prefix: str) -> bool:
        return any(key == prefix or key.startswith(f"{prefix}.") for key in self.left)

    def shape(self, key: str) -> tuple[int, ...]:
        """() where there is no such tensor."""
        return tuple(self.left[key].shape) if key in self.left else ()

    def children(self, prefix: str) -> list[str]:
        """The next parts of all names below a prefix, 2 before 10."""
        size = len(prefix) + 1
        names = {key[size:].split(".")[0] for key in self.left if key.startswith(f"{prefix}.")}
        return sorted(names, key=_natural)

    def take(self, key: str) -> Tensor | None:
        """One tensor out of those that are left; None, and it is absent."""
        if key not in self.left:
            self.absent.append(key)
        return self.left.pop(key, None)

    def drop(self, *prefixes: str) -> list[str]:
        """Drop what only training needs; returns the names."""
        dropped = [key for key in self.left if key.startswith(prefixes)]
        for key in dropped:
            del self.left[key]
        return dropped

    def move(
        self,
        source: str,
        convs: Sequence[str] = (),
        norms: Sequence[str] = (),
        eps: float = EPS,
    ) -> None:
        """All layers below a name: its convolutions in order, and its batch norms in order.

        How a block calls its layers differs between code bases and versions; which are
        convolutions and which are norms does not.
        """
        layers: dict[str, Layer] = {}
        for key in [k for k in self.left if k.startswith(f"{source}.")]:
            name, _, leaf = key.rpartition(".")
            layers.setdefault(name, {})[leaf] = self.left[key]
        names = sorted(layers, key=_natural)
        found_norms = [name for name in names if "running_mean" in layers[name]]
        found_convs = [name for name in names if name not in found_norms]
        for kind, found, wanted in (
            ("convolution", found_convs, convs),
            ("batch norm", found_norms, norms),
        ):
            if len(found) < len(wanted):
                self.absent.append(f"{source} ({kind} {len(found) + 1} of {len(wanted)})")
            for theirs, ours in zip(found, wanted, strict=False):  # more of them are left over
                for leaf, tensor in layers[theirs].items():
                    self.done[f"{ours}.{leaf}"] = _with_eps(leaf, tensor, eps)
                    del self.left[f"{theirs}.{leaf}"]

    def rename(self, source: str, target: str, eps: float = EPS) -> None:
        """Move everything below a name, where both projects use the same names."""
        if not self.has(source):
            self.absent.append(source)
        for key in [k for k in self.left if k.startswith(f"{source}.")]:
            tensor = _with_eps(key.rpartition(".")[2], self.left.pop(key), eps)
            self.done[target + key[len(source) :]] = tensor

    def checked(self, wanted: Mapping[str, Tensor], path: object) -> dict[str, Tensor]:
        """What was moved, as a model with these tensors takes it; raises unless all is used.

        Batch norms' counters are no loss: the oldest files have none.
        """
        missing = [key for key in wanted if key not in self.done and not key.endswith(OWN)]
        self.left |= {f"{key} (moved)": v for key, v in self.done.items() if key not in wanted}
        left = [key for key in self.left if not key.endswith(COUNTER)]
        if left or missing or self.absent:
            lines = [f"{path} does not map exactly, so no model was made."]
            if left:
                lines.append(f"left over in the file: {_listed(left)}")
            if self.absent:
                lines.append(f"missing in the file: {_listed(self.absent)}")
            elif missing:
                lines.append(f"missing in the file, by our names: {_listed(missing)}")
            if left:
                lines.append("Tensors that only training needs can be left out: `ignore=NAME`.")
            raise UserError("\n".join(lines))
        state = {}
        for key, tensor in wanted.items():
            nothing = torch.ones_like if key.endswith(RATE) else torch.zeros_like
            given = self.done.get(key, nothing(tensor))
            if given.numel() == 1 == tensor.numel():
                given = given.reshape(tensor.shape)  # a scalar, or a list of one
            if given.shape != tensor.shape:
                raise UserError(
                    f"{path}: {key} would have the shape {tuple(given.shape)}, but "
                    f"{tuple(tensor.shape)} is needed, so the networks differ there."
                )
            if given.is_floating_point() and not torch.isfinite(given).all():
                raise UserError(f"{path} is damaged: {key} holds values that are not finite.")
            state[key] = given.to(tensor.dtype)
        return state


def _with_eps(leaf: str, tensor: Tensor, eps: float) -> Tensor:
    """A batch norm uses 1/√(variance + eps): another eps is a shift of the variance."""
    return tensor.float() + (eps - EPS) if leaf == "running_var" and eps != EPS else tensor


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"[.]", name)]
