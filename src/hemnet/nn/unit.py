"""What the attention units share: convolutions around EM, bases between images, their health.

1×1 convolution (→ scale, ours) → T iterations of EM → features rebuilt from K bases → ReLU →
1×1 convolution, batch norm, + identity → ReLU
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hemnet.em import EMResult, r_step
from hemnet.em.steps import wide
from hemnet.nn.health import BasesWarning, Health, read_health
from hemnet.nn.moving import MovingAverage

SAMPLE = 512  # positions of an image that stand for all of it where statistics are taken
KEPT_IMAGES = 4  # images whose sample is kept for `health`
CHECK_EVERY = 100  # training passes between two looks at the bases' health
WARM_UP = 20  # passes before the bases are judged at all


class Preset(NamedTuple):
    """How a unit is added to its input where its caller does not choose.

    Attributes:
        gain: how much of its branch the unit adds at first.
        gain_rate: how many times as fast as other weights the gain is learned. A rate that suits
            convolutions hardly moves it: at 1 it stays near its start for thousands of steps,
            and a unit that starts as the identity remains one.
    """

    gain: float
    gain_rate: float


class EMUnit(nn.Module, ABC):
    """Everything but how bases are fitted, which is the subclass's: `variance` and `_attend`."""

    def __init__(
        self, channels: int, bases: int, decay: float, start: Preset, normalise: bool = False
    ) -> None:
        super().__init__()
        for name, number in (("channels", channels), ("bases", bases)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"{name} must be a whole number of at least 1; got {number!r}")
        if not 0 <= decay <= 1:
            raise ValueError(f"decay must lie in [0, 1]; got {decay!r}")
        self.channels, self.start = channels, start
        self.conv_in = nn.Conv2d(channels, channels, 1)
        # No weights of its own: a common shift of the features, which a large first convolution or
        # its bias can make, would let the longest basis explain every position.
        self.scale = nn.BatchNorm2d(channels, affine=False) if normalise else nn.Identity()
        self.conv_out = nn.Conv2d(channels, channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.bases = MovingAverage(torch.empty(bases, channels), decay)
        self._kept: tuple[Tensor, Tensor | None] | None = None  # features and their weights
        self._passes = 0
        self._warned = False

    def reset_parameters(self) -> None:
        """Fresh weights and bases; needed by hand only after construction on the meta device."""
        for conv in (self.conv_in, self.conv_out):
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)
        for norm in (self.scale, self.norm):
            if isinstance(norm, nn.BatchNorm2d):
                norm.reset_parameters()
        nn.init.constant_(self.norm.weight, self.start.gain / self.start.gain_rate)
        with torch.no_grad():
            count = self.bases.value.shape[0]
            nn.init.normal_(self.bases.value, std=math.sqrt(2 / count))
            self.bases.value.copy_(F.normalize(self.bases.value, dim=-1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x: B,C,H,W → B,C,H,W.

        `mask`: B,H,W or 1,H,W, True or 1 where a position is part of the image. What is not, such
        as padding, takes no part in EM; it is rebuilt from the bases like any other position.
        """
        if x.ndim != 4 or x.shape[1] != self.channels:
            raise ValueError(
                f"expected an input of shape (batch, {self.channels}, height, width); "
                f"got {tuple(x.shape)}"
            )
        features = self.scale(self.conv_in(x))
        flat = features.flatten(2).mT  # B,N,C: a view of either memory format
        weights = None if mask is None else _position_weights(mask, x)
        looked_at = None if torch.compiler.is_exporting() else (_sample(flat), _thinned(weights))
        if self.training and looked_at is not None:
            variance = self._tracked_variance(*looked_at)
            start = self.bases.begin(self.parameters())
            result = self._attend(flat, start, variance, weights)
            self.bases.update(result.bases)
        else:
            result = self._attend(flat, self.bases.value, self.variance, weights)
        if looked_at is not None:
            self._observe(*looked_at)
        rebuilt = self.conv_out(F.relu(_rebuild(result, features)))
        return F.relu(self._add_branch(x, rebuilt))

    def _add_branch(self, x: Tensor, rebuilt: Tensor) -> Tensor:
        """x + r · norm(rebuilt), r being `gain_rate`.

        A step of the optimizer changes what is added r times as much as it changes the norm's
        weights. Their gradient is r times as large, too, and an optimizer whose steps follow the
        gradient's size, as SGD's do, would be r² times as fast: it is divided by r again.
        """
        r = self.start.gain_rate
        if r == 1 or torch.compiler.is_exporting() or not torch.is_grad_enabled():
            return torch.add(x, self.norm(rebuilt), alpha=r)
        branch = _gradient_times(self.norm(_gradient_times(rebuilt, r)), 1 / r)
        return torch.add(x, branch, alpha=r)

    def health(self, x: Tensor | None = None) -> Health:
        """How the bases do on inputs x: B,C,H,W; None: on a sample of the last pass's features."""
        if x is None and self._kept is None:
            raise RuntimeError("no features to read health from: run a forward pass or give x")
        with torch.no_grad():
            seen = self._kept if x is None else (self._features(x), None)
            assert seen is not None
            flat, weights = seen
            result = self._attend(flat, self.bases.value, self.variance, weights)
        gamma, start = result.responsibilities, self.bases.value
        return read_health(flat, start, gamma, self.variance, weights, result.bases)

    def _features(self, x: Tensor) -> Tensor:
        """What EM sees of x: B,C,H,W in evaluation: B,N,C."""
        mode = self.scale.training
        self.scale.eval()  # looking must not move its averages
        features = self.scale(self.conv_in(x))
        self.scale.train(mode)
        return wide(features.flatten(2).mT)

    def train(self, mode: bool = True) -> Self:
        if self.training and not mode:
            self._check_health()
        return super().train(mode)

    @property
    @abstractmethod
    def variance(self) -> float | Tensor:
        """σ² of an evaluation pass."""

    def _tracked_variance(self, sample: Tensor, weights: Tensor | None) -> float | Tensor:
        """σ² of a training pass, which may learn from its sample B,n,C with weights B,n."""
        return self.variance

    @abstractmethod
    def _attend(
        self, x: Tensor, bases: Tensor, variance: float | Tensor, weights: Tensor | None = None
    ) -> EMResult:
        """Fit bases: K,C to x: B,N,C whose positions count as weights: B,N or 1,N say."""

    def _observe(self, sample: Tensor, weights: Tensor | None) -> None:
        self._kept = sample[:KEPT_IMAGES], None if weights is None else weights[:KEPT_IMAGES]
        if self.training and not torch.compiler.is_compiling():
            self._passes += 1
            if self._passes % CHECK_EVERY == 0:
                self._check_health()

    def _check_health(self) -> None:
        if self._warned or self._passes < WARM_UP:
            return
        health = self.health()
        if health.state != "healthy" and health.bases > 1:  # one basis is a global mean by choice
            self._warned = True
            advice = _advice(health, follows=isinstance(self.variance, Tensor))
            warnings.warn(f"{type(self).__name__}: {advice}", BasesWarning, stacklevel=3)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}  # a copy of features is not part of the unit

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


def _rebuild(result: EMResult, like: Tensor) -> Tensor:
    """The R-step: B,C,H,W in the memory format of `like`, so that nothing is copied."""
    if like.is_contiguous(memory_format=torch.channels_last):
        flat = r_step(result.responsibilities, result.bases).mT
    else:
        flat = r_step(result.bases.mT.to(result.responsibilities.dtype), result.responsibilities.mT)
    return flat.unflatten(2, like.shape[2:])


def _gradient_times(x: Tensor, factor: float) -> Tensor:
    """x itself, with its gradient multiplied."""
    same: Tensor = _GradientTimes.apply(x, factor)
    return same


class _GradientTimes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


@torch.no_grad()
def _sample(x: Tensor) -> Tensor:
    """Evenly spaced positions of x: B,N,C in float32. The same for an image in any batch."""
    return wide(x[:, _sampled(x)]).clone()


def _sampled(x: Tensor) -> slice:
    """Which of the positions, x: B,N or B,N,C, a sample has."""
    stride = max(1, x.shape[1] // SAMPLE)
    return slice(0, min(SAMPLE * stride, x.shape[1]), stride)


def _thinned(weights: Tensor | None) -> Tensor | None:
    """The weights B,n of the positions of a sample."""
    return None if weights is None else weights[:, _sampled(weights)].clone()


def _position_weights(mask: Tensor, x: Tensor) -> Tensor:
    """mask: B,H,W or 1,H,W as weights of positions: B,N or 1,N."""
    if mask.ndim != 3 or mask.shape[0] not in (1, x.shape[0]) or mask.shape[1:] != x.shape[2:]:
        raise ValueError(
            f"mask must have the shape (batch, height, width) of the input {tuple(x.shape)}; "
            f"got {tuple(mask.shape)}"
        )
    return mask.flatten(1).to(torch.float64 if x.dtype == torch.float64 else torch.float32)


def _advice(health: Health, follows: bool) -> str:
    """What happened and what to do; `follows` where σ² already follows the features."""
    if health.state == "collapsed":
        cure = "Check what reaches the unit: it hardly varies within an image"
        return (
            f"the bases have collapsed into one ({health}): every position is rebuilt as the same "
            "vector, and the unit is no more than a global mean. "
            + (cure if follows else 'Use variance="auto", or a variance below λ')
        )
    cure = "If training stalls, use fewer bases or a fixed variance above this σ²"
    return (
        f"the responsibilities have saturated ({health}), so that the E-step passes no gradient. "
        + (cure if follows else 'Use variance="auto", or a larger variance')
    )
