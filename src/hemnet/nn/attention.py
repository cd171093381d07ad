"""Attention units for any network: B,C,H,W → B,C,H,W with a global receptive field, O(N·K).

`HighwayEMAttention` is the unit of "Improving Gradient Flow with Unrolled Highway Expectation
Maximization" (AAAI 2021); `EMAttention` that of "Expectation-Maximization Attention Networks for
Semantic Segmentation" (ICCV 2019), its special case of full steps without a gradient.

    1×1 convolution (→ scale, ours) → T iterations of EM → features rebuilt from K bases → ReLU →
    1×1 convolution, batch norm, + identity → ReLU
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hemnet.em import BACKWARDS, EMResult, highway_em, r_step
from hemnet.em.checks import (
    StepSize,
    check_iterations,
    check_kernel,
    check_steps,
    check_variance,
)
from hemnet.em.solver import constant_em
from hemnet.em.steps import wide
from hemnet.nn.health import BasesWarning, Health, covariance_product, read_health
from hemnet.nn.moving import MovingAverage

SAMPLE = 512  # positions of an image that stand for all of it where statistics are taken
KEPT_IMAGES = 4  # images whose sample is kept for `health`
CHECK_EVERY = 100  # training passes between two looks at the bases' health
WARM_UP = 20  # passes before the bases are judged at all
AUTO_RATIO = 2.0  # λ/σ² that variance="auto" keeps: at 4 the scenes' context is no longer learned


class Preset(NamedTuple):
    """How a unit is added to its input where its caller does not choose.

    Attributes:
        gain: how much of its branch the unit adds at first.
        gain_rate: how many times as fast as other weights the gain is learned. A rate that suits
            convolutions hardly moves it: at 1 it stays near its start for thousands of steps,
            whether the branch helps or disturbs.
    """

    gain: float
    gain_rate: float


PRESETS = {
    "recommended": Preset(gain=0.3, gain_rate=10.0),  # docs/results.md has the measurements
    "paper": Preset(gain=1.0, gain_rate=1.0),
}


class _EMUnit(nn.Module, ABC):
    """The convolutions, the bases between images and their health; `attend` is the subclass's."""

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
        self._kept: Tensor | None = None
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

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != self.channels:
            raise ValueError(
                f"expected an input of shape (batch, {self.channels}, height, width); "
                f"got {tuple(x.shape)}"
            )
        features = self.scale(self.conv_in(x))
        flat = features.flatten(2).mT  # B,N,C: a view of either memory format
        sample = None if torch.compiler.is_exporting() else _sample(flat)
        if self.training and sample is not None:
            variance = self._tracked_variance(sample)
            result = self._attend(flat, self.bases.begin(self.parameters()), variance)
            self.bases.update(result.bases)
        else:
            result = self._attend(flat, self.bases.value, self.variance)
        if sample is not None:
            self._observe(sample)
        rebuilt = F.relu(_rebuild(result, features))
        # What a step of the optimizer does to the norm's weight, it does gain_rate times here.
        branch = self.norm(self.conv_out(rebuilt))
        return F.relu(torch.add(x, branch, alpha=self.start.gain_rate))

    def health(self, x: Tensor | None = None) -> Health:
        """How the bases do on inputs x: B,C,H,W; None: on a sample of the last pass's features."""
        if x is None and self._kept is None:
            raise RuntimeError("no features to read health from: run a forward pass or give x")
        with torch.no_grad():
            flat = self._kept if x is None else self._features(x)
            assert flat is not None
            result = self._attend(flat, self.bases.value, self.variance)
        return read_health(flat, self.bases.value, result.responsibilities, self.variance)

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

    def _tracked_variance(self, sample: Tensor) -> float | Tensor:
        """σ² of a training pass, which may learn from its sample B,n,C."""
        return self.variance

    @abstractmethod
    def _attend(self, x: Tensor, bases: Tensor, variance: float | Tensor) -> EMResult:
        """Fit bases: K,C to x: B,N,C."""

    def _observe(self, sample: Tensor) -> None:
        self._kept = sample[:KEPT_IMAGES]
        if self.training and not torch.compiler.is_compiling():
            self._passes += 1
            if self._passes % CHECK_EVERY == 0:
                self._check_health()

    def _check_health(self) -> None:
        if self._warned or self._passes < WARM_UP:
            return
        health = self.health()
        if health.state != "healthy":
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


class HighwayEMAttention(_EMUnit):
    """Attention by unrolled highway EM: the gradient reaches every iteration.

    Args:
        channels: channels of the input and output, C.
        bases: number of bases, K.
        iterations: E- and N-steps in training, T.
        step_size: η in (0, 1]: a number, one per iteration, or a tensor; a parameter is learned.
        variance: σ²: a number, None for √C, or "auto" to follow the features' scale.
        kernel: "dot" or "rbf".
        decay: of the moving average of the bases.
        eval_iterations: E- and N-steps in evaluation; as in training where None.
        backward: "exact", "autograd", "highway" or "none", see `hemnet.highway_em`.
        zero_init: True for gain=0, so that the unit is the identity at first, False for gain=1.
        gain: how much of its branch the unit adds to its input at first; None for the preset's.
        gain_rate: how many times as fast as other weights the gain is learned; None for the
            preset's.
        normalise: EM sees features of mean 0 and variance 1 in each channel.
        preset: "recommended" (gain=0.3, gain_rate=10), or "paper" for the paper's unit to the
            letter (1 and 1).

    With per-iteration step sizes and more iterations in evaluation, the last one is repeated.

    Examples:
        >>> attention = HighwayEMAttention(64, bases=16)
        >>> attention(torch.randn(2, 64, 32, 48)).shape
        torch.Size([2, 64, 32, 48])
    """

    def __init__(
        self,
        channels: int,
        bases: int = 64,
        iterations: int = 3,
        step_size: StepSize = 0.5,
        variance: float | Literal["auto"] | None = None,
        kernel: str = "dot",
        decay: float = 0.9,
        eval_iterations: int | None = None,
        backward: str = "exact",
        zero_init: bool | None = None,
        gain: float | None = None,
        gain_rate: float | None = None,
        normalise: bool = False,
        preset: str = "recommended",
    ) -> None:
        if preset not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}; got {preset!r}")
        if gain is not None and zero_init is not None:
            raise ValueError(f"give gain or zero_init, not both; got {gain!r} and {zero_init!r}")
        if gain is None:
            gain = PRESETS[preset].gain if zero_init is None else float(not zero_init)
        gain_rate = PRESETS[preset].gain_rate if gain_rate is None else gain_rate
        if not math.isfinite(gain):
            raise ValueError(f"gain must be a finite number; got {gain!r}")
        if not 0 < gain_rate < math.inf:
            raise ValueError(f"gain_rate must be a finite number above 0; got {gain_rate!r}")
        check_iterations(iterations)
        check_iterations(iterations if eval_iterations is None else eval_iterations)
        check_kernel(kernel)
        check_steps(step_size, iterations)
        if backward not in BACKWARDS:
            raise ValueError(f"backward must be one of {', '.join(BACKWARDS)}; got {backward!r}")
        if isinstance(variance, str) and variance != "auto":
            raise ValueError(f'variance must be a number, None or "auto"; got {variance!r}')
        super().__init__(channels, bases, decay, Preset(gain, gain_rate), normalise)
        self.iterations, self.eval_iterations = iterations, eval_iterations
        self.kernel, self.backward = kernel, backward
        if backward == "none":  # no gradient would reach it; data parallelism wants to be told
            self.conv_in.requires_grad_(False)
        self.step_size: Any
        if isinstance(step_size, Tensor) and not isinstance(step_size, nn.Parameter):
            self.register_buffer("step_size", step_size)
        else:
            self.step_size = step_size
        self.principal: MovingAverage | None = None
        self._fixed_variance = 0.0
        if variance == "auto":
            # ‖value‖ is λ and value/‖value‖ its direction: a power iteration over training steps.
            self.principal = MovingAverage(torch.empty(channels), decay)
        else:
            self._fixed_variance = float(check_variance(variance, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.principal is not None:
            direction = F.normalize(torch.randn_like(self.principal.value), dim=0)
            with torch.no_grad():  # σ² starts at √C
                self.principal.value.copy_(direction * (AUTO_RATIO * math.sqrt(self.channels)))

    @property
    def variance(self) -> float | Tensor:
        if self.principal is None:
            return self._fixed_variance
        return self.principal.value.norm() / AUTO_RATIO

    def _tracked_variance(self, sample: Tensor) -> float | Tensor:
        if self.principal is None:
            return self._fixed_variance
        start = self.principal.begin(self.parameters())
        self.principal.update(covariance_product(sample, F.normalize(start, dim=0)))
        return start.norm() / AUTO_RATIO

    def _attend(self, x: Tensor, bases: Tensor, variance: float | Tensor) -> EMResult:
        iterations = self.iterations
        if not self.training and self.eval_iterations is not None:
            iterations = self.eval_iterations
        steps = fit_length(self.step_size, iterations)
        return highway_em(x, bases, iterations, steps, variance, self.kernel, self.backward)

    def extra_repr(self) -> str:
        variance = "auto" if self.principal is not None else f"{self._fixed_variance:.4g}"
        return (
            f"{self.channels}, bases={self.bases.value.shape[0]}, iterations={self.iterations}, "
            f"step_size={self.step_size}, variance={variance}, kernel={self.kernel}, "
            f"eval_iterations={self.eval_iterations}, backward={self.backward}"
        )


class EMAttention(_EMUnit):
    """EMANet's unit: no temperature, unit-length bases, full steps, no gradient through them.

    The arguments are those of `HighwayEMAttention`.
    """

    def __init__(
        self,
        channels: int,
        bases: int = 64,
        iterations: int = 3,
        decay: float = 0.9,
        eval_iterations: int | None = None,
        zero_init: bool = False,
    ) -> None:
        check_iterations(iterations)
        check_iterations(iterations if eval_iterations is None else eval_iterations)
        super().__init__(channels, bases, decay, Preset(float(not zero_init), 1.0))
        self.iterations, self.eval_iterations = iterations, eval_iterations
        # No gradient would reach it; data parallelism wants to be told.
        self.conv_in.requires_grad_(False)
        self.reset_parameters()

    @property
    def variance(self) -> float:
        return 1.0

    def _attend(self, x: Tensor, bases: Tensor, variance: float | Tensor) -> EMResult:
        iterations = self.iterations
        if not self.training and self.eval_iterations is not None:
            iterations = self.eval_iterations
        return constant_em(x, bases, (1.0,) * iterations, variance, unit_length=True)

    def extra_repr(self) -> str:
        return (
            f"{self.channels}, bases={self.bases.value.shape[0]}, iterations={self.iterations}, "
            f"eval_iterations={self.eval_iterations}"
        )


def _rebuild(result: EMResult, like: Tensor) -> Tensor:
    """The R-step: B,C,H,W in the memory format of `like`, so that nothing is copied."""
    if like.is_contiguous(memory_format=torch.channels_last):
        flat = r_step(result.responsibilities, result.bases).mT
    else:
        flat = r_step(result.bases.mT.to(result.responsibilities.dtype), result.responsibilities.mT)
    return flat.unflatten(2, like.shape[2:])


@torch.no_grad()
def _sample(x: Tensor) -> Tensor:
    """Evenly spaced positions of x: B,N,C in float32. The same for an image in any batch."""
    stride = max(1, x.shape[1] // SAMPLE)
    return wide(x[:, ::stride][:, :SAMPLE]).clone()


def fit_length(step_size: Any, iterations: int) -> Any:
    """Step sizes for another number of iterations: cut off, or the last one repeated."""
    if isinstance(step_size, int | float) or (
        isinstance(step_size, Tensor) and step_size.numel() == 1
    ):
        return step_size
    missing = iterations - len(step_size)
    if missing <= 0:
        return step_size[:iterations]
    if isinstance(step_size, Tensor):
        return torch.cat((step_size, step_size[-1:].expand(missing)))
    return (*step_size, *(step_size[-1:] * missing))


def _advice(health: Health, follows: bool) -> str:
    """What happened and what to do; `follows` where σ² already follows the features."""
    if health.state == "collapsed":
        cure = "Check what reaches the unit: it hardly varies within an image"
        return (
            f"the bases have collapsed into one ({health}), so that every position is rebuilt as "
            "the same vector. "
            + (cure if follows else 'Use variance="auto", or a variance below λ')
        )
    cure = "If training stalls, use fewer bases or a fixed variance above this σ²"
    return (
        f"the responsibilities have saturated ({health}), so that the E-step passes no gradient. "
        + (cure if follows else 'Use variance="auto", or a larger variance')
    )
