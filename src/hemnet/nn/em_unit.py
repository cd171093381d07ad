"""What the attention units share: convolutions around EM, and bases that follow the data.

1×1 convolution (→ scale, ours) → T iterations of EM → features rebuilt from K bases → ReLU →
1×1 convolution, batch norm, + identity → ReLU

The first convolution is not computed where EM can see through it: see `hemnet.em.sources`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from hemnet.em import r_step
from hemnet.em.checks import check_choice
from hemnet.em.numeric import upcast
from hemnet.em.sources import Linear, apply_linear
from hemnet.nn.health import Health, position_sample, read_health
from hemnet.nn.health_watch import HealthWatch
from hemnet.nn.initial_bases import farthest_points
from hemnet.nn.plan import Plan, Solver, highway_solver
from hemnet.nn.residual_gain import ResidualGain, batch_norm
from hemnet.nn.running_average import RunningAverage

INITIAL_BASES = ("image", "running_average")  # see `HighwayEMAttention`


class EMUnit(nn.Module, ABC):
    """Everything but the mixture and its steps, which a subclass gives by `plan`.

    Attributes:
        solver: fits the bases, `highway_solver`; put another in its place to watch or change what
            the unit does, and this one back.
    """

    solver: Solver
    absorbs: bool = True
    iterations: int
    eval_iterations: int | None

    def __init__(
        self,
        channels: int,
        bases: int,
        decay: float,
        gain: float,
        gain_lr_mult: float = 1.0,
        normalise: bool = False,
        initial_bases: str = "running_average",
        width: int | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        check_count("channels", channels)
        check_count("bases", bases)
        if not 0 <= decay <= 1:
            raise ValueError(f"decay must lie in [0, 1]; got {decay!r}")
        check_choice(initial_bases, INITIAL_BASES, "initial_bases")
        if not math.isfinite(gain):
            raise ValueError(f"gain must be a finite number; got {gain!r}")
        self.channels, self.initial_gain, self.group = channels, gain, group
        self.initial_bases = initial_bases
        self.conv_in = nn.Conv2d(channels, channels, 1)
        # No weights of its own: a common shift of the features, which a large first convolution or
        # its bias can make, would let the longest basis explain every position.
        self.scale = nn.BatchNorm2d(channels, affine=False) if normalise else nn.Identity()
        self.conv_out = nn.Conv2d(channels, channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.gain = ResidualGain(gain_lr_mult)
        self.bases = RunningAverage(torch.empty(bases, width or channels), decay)
        self.solver = highway_solver
        self._watch = HealthWatch()

    def reset_parameters(self) -> None:
        """Fresh weights and bases; needed by hand only after construction on the meta device."""
        for conv in (self.conv_in, self.conv_out):
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)
        for norm in (self.scale, self.norm):
            if isinstance(norm, nn.BatchNorm2d):
                norm.reset_parameters()
        self.gain.reset_parameters()
        nn.init.constant_(self.norm.weight, self.initial_gain / self.gain.factor)
        with torch.no_grad():
            means = torch.randn_like(self.bases.value[:, : self.channels])
            means = F.normalize(means, dim=-1)
            self.bases.value.copy_(self.plan().mixture.start(means))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x: B,C,H,W → B,C,H,W, or B,N,C → B,N,C.

        `mask`: B,H,W or 1,H,W (B,N or 1,N), True or 1 where a position is part of the image. What
        is not, such as padding, takes no part in EM; it is rebuilt from the bases like any other
        position.
        """
        if x.ndim == 3 and x.shape[2] == self.channels:
            rows = self(x.mT.unsqueeze(3), None if mask is None else mask.unsqueeze(2))
            return rows.squeeze(3).mT
        if x.ndim != 4 or x.shape[1] != self.channels:
            raise ValueError(
                f"expected an input of shape (batch, {self.channels}, height, width) or "
                f"(batch, positions, {self.channels}); got {tuple(x.shape)}"
            )
        weights = None if mask is None else _position_weights(mask, x)
        flat, linear = self._input(x)
        seen = None if torch.compiler.is_exporting() else position_sample(flat, weights)
        learning = seen if self.training else None
        plan = self.plan() if learning is None else self._training_plan(*learning, linear)
        if self.initial_bases == "image":
            start = self._own_points(flat, weights, linear)
        elif learning is None:
            start = self.bases.value
        else:
            start = self.bases.begin(self.parameters())
        result = self.solver(flat, start, plan, weights=weights, linear=linear, group=self.group)
        if self.initial_bases == "running_average" and learning is not None:
            self.bases.update(result.bases)
        if seen is not None and self._watch.see(*seen, self.training):
            self._look()
        means = plan.mixture.means(result.bases)
        rebuilt = _rebuild(result.responsibilities, means, x)
        return F.relu(self.gain(x, self.conv_out(F.relu(rebuilt)), self.norm, self.group))

    def starting_bases(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """What EM starts from in evaluation on features x: B,N,C: K,P, or B,K,C of each image."""
        if self.initial_bases == "running_average":
            return upcast(self.bases.value)
        return self._own_points(x, weights, None)

    def _own_points(self, x: Tensor, weights: Tensor | None, linear: Linear | None) -> Tensor:
        return farthest_points(x, len(self.bases.value), weights, linear, self.group)

    def _input(self, x: Tensor) -> tuple[Tensor, Linear | None]:
        """x: B,C,H,W as EM reads it: B,N,C, and the linear map in front, a view of either layout.

        A batch norm between the convolution and EM needs the convolution's output.
        """
        linear = self._linear()
        if linear is None:
            return batch_norm(self.scale, self.conv_in(x), self.group).flatten(2).mT, None
        return x.flatten(2).mT, linear

    def _linear(self) -> Linear | None:
        """The first convolution where EM can see through it."""
        if not self.absorbs or not isinstance(self.scale, nn.Identity):
            return None
        return self.conv_in.weight.flatten(1), self.conv_in.bias

    def features(self, x: Tensor) -> Tensor:
        """What EM sees of inputs x: B,C,H,W in evaluation: B,C,H,W in float32 (or float64)."""
        mode = self.scale.training
        self.scale.eval()  # looking must not move its averages
        features = self.scale(self.conv_in(x))
        self.scale.train(mode)
        return upcast(features)

    def health(self, x: Tensor | None = None) -> Health:
        """How the bases do on inputs x: B,C,H,W; None: on a sample of the last pass's features."""
        with torch.no_grad():
            if x is not None:
                flat, weights = self.features(x).flatten(2).mT, None
            elif self._watch.seen is not None:
                flat, weights = self._watch.seen
                flat = apply_linear(flat, self._linear())
            else:
                raise RuntimeError("no features to read health from: run a forward pass or give x")
            plan, start = self.plan(), self.starting_bases(flat, weights)
            result = highway_solver(flat, start, plan, weights=weights)
        return read_health(flat, start, *result, plan.mixture, plan.steps[-1], weights)

    def train(self, mode: bool = True) -> Self:
        if self.training and not mode:
            self._look()
        return super().train(mode)

    def _look(self) -> None:
        follows = isinstance(self.plan().mixture.variance, Tensor)
        self._watch.look(type(self).__name__, self.health, follows)

    @property
    def current_iterations(self) -> int:
        """T of the mode, training or evaluation, that the unit is in."""
        if self.training or self.eval_iterations is None:
            return self.iterations
        return self.eval_iterations

    @abstractmethod
    def plan(self, iterations: int | None = None) -> Plan:
        """Of an evaluation pass; with another number of iterations than the mode's, if given."""

    def _training_plan(self, sample: Tensor, weights: Tensor | None, linear: Linear | None) -> Plan:
        """Of a training pass, which may learn from its sample B,n,C with weights B,n."""
        return self.plan()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        given, own = state_dict.get(f"{prefix}bases.value"), self.bases.value
        if isinstance(given, Tensor) and given.ndim == 2 and given.shape != own.shape:
            raise RuntimeError(
                f"the checkpoint has {given.shape[0]} bases of {given.shape[1]} channels, this "
                f"unit has {own.shape[0]} bases of {own.shape[1]} channels "
                f"({prefix}bases.value): build it with bases={given.shape[0]}, "
                f"channels={given.shape[1]}"
            )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def em_units(model: nn.Module) -> list[EMUnit]:
    """The EM units of any network, in order."""
    return [module for module in model.modules() if isinstance(module, EMUnit)]


def check_count(name: str, number: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{name} must be a whole number of at least 1; got {number!r}")


def _rebuild(responsibilities: Tensor, means: Tensor, like: Tensor) -> Tensor:
    """The R-step: B,C,H,W in the memory format of `like`, so that nothing is copied."""
    if like.is_contiguous(memory_format=torch.channels_last):
        flat = r_step(responsibilities, means).mT
    else:
        flat = r_step(means.mT.to(responsibilities.dtype), responsibilities.mT)
    return flat.unflatten(2, like.shape[2:])


def _position_weights(mask: Tensor, x: Tensor) -> Tensor:
    """mask: B,H,W or 1,H,W as weights of positions: B,N or 1,N."""
    if mask.ndim != 3 or mask.shape[0] not in (1, x.shape[0]) or mask.shape[1:] != x.shape[2:]:
        raise ValueError(
            f"mask must have the shape (batch, height, width) of the input {tuple(x.shape)}; "
            f"got {tuple(mask.shape)}"
        )
    return mask.flatten(1).to(torch.float64 if x.dtype == torch.float64 else torch.float32)
