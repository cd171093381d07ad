"""Attention units for any network: B,C,H,W → B,C,H,W with a global receptive field, O(N·K).

`HighwayEMAttention` is the unit of "Improving Gradient Flow with Unrolled Highway Expectation
Maximization" (AAAI 2021); `EMAttention` that of "Expectation-Maximization Attention Networks for
Semantic Segmentation" (ICCV 2019), its special case of full steps without a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from hemnet.em import BACKWARDS, Gaussian, Mixture, VonMisesFisher
from hemnet.em.checks import StepSize, check_choice, check_iterations, check_steps
from hemnet.em.mixtures import KERNELS, make_mixture, mixture_from
from hemnet.em.numeric import upcast
from hemnet.em.sources import Linear
from hemnet.nn.em_unit import EMUnit, check_count
from hemnet.nn.health import covariance_product
from hemnet.nn.plan import Plan
from hemnet.nn.running_average import RunningAverage
from hemnet.renamed_options import accepts_old_names

AUTO_RATIO = 2.0  # λ/σ² that variance="auto" keeps: at 4 the scenes' context is no longer learned
PRESETS: dict[str, dict[str, Any]] = {  # what an option is where its caller does not choose
    # docs/recall.md and docs/results.md have the measurements
    "recommended": {
        "initial_bases": "image",
        "variance": "auto",
        "gain": 0.0,
        "gain_lr_mult": 30.0,
    },
    "paper": {
        "initial_bases": "running_average",
        "variance": None,
        "gain": 1.0,
        "gain_lr_mult": 1.0,
    },
}


class HighwayEMAttention(EMUnit):
    """Attention by unrolled highway EM: the gradient reaches every iteration.

    Args:
        channels: channels of the input and output, C.
        bases: number of bases, K.
        iterations: E- and N-steps in training, T.
        step_size: η in (0, 2): a number, one per iteration, or a tensor; a parameter is learned.
        variance: σ²: a number, None for √C, or "auto" to follow the features' scale; the preset's
            unless given.
        kernel: "dot" or "rbf".
        decay: of the moving average of the bases.
        eval_iterations: E- and N-steps in evaluation; as in training where None.
        backward: "exact", "autograd", "highway", "implicit" or "none", see `hemnet.highway_em`.
        zero_init: True for gain=0, so that the unit is the identity at first, False for gain=1.
        gain: how much of its branch the unit adds to its input at first; None for the preset's.
        gain_lr_mult: the gain's learning rate as a multiple of the other weights'; None for the
            preset's.
        normalise: EM sees features of mean 0 and variance 1 in each channel.
        initial_bases: what EM starts from: "image" – K features of the image itself, far apart
            from each other, so that the bases find groups that no other image has;
            "running_average" – bases shared by all images, which follow what EM makes of them
            (`decay`); None for the preset's.
        preset: "recommended" (initial_bases="image", variance="auto", gain=0, gain_lr_mult=30: the
            identity at first, and soon more), or "paper" for the paper's unit to the letter
            (initial_bases="running_average", √C, 1 and 1).
        mixture: another mixture than the Gaussian that variance and kernel are short for, such as
            `hemnet.VonMisesFisher(10.0)`, or its name and settings as a mapping.
        group: a process group over whose ranks the positions of each image are spread.

    With per-iteration step sizes and more iterations in evaluation, the last one is repeated.

    Examples:
        >>> attention = HighwayEMAttention(64, bases=16)
        >>> attention(torch.randn(2, 64, 32, 48)).shape
        torch.Size([2, 64, 32, 48])
    """

    @accepts_old_names
    def __init__(
        self,
        channels: int,
        bases: int = 64,
        iterations: int = 3,
        step_size: StepSize = 0.5,
        variance: float | Literal["auto", "preset"] | None = "preset",
        kernel: str = "dot",
        decay: float = 0.9,
        eval_iterations: int | None = None,
        backward: str = "exact",
        zero_init: bool | None = None,
        gain: float | None = None,
        gain_lr_mult: float | None = None,
        normalise: bool = False,
        initial_bases: str | None = None,
        preset: str = "recommended",
        mixture: Mixture | Mapping[str, Any] | str | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        check_choice(preset, tuple(PRESETS), "preset")
        if gain is not None and zero_init is not None:
            raise ValueError(f"give gain or zero_init, not both; got {gain!r} and {zero_init!r}")
        if gain is None and zero_init is not None:
            gain = float(not zero_init)
        chosen = PRESETS[preset]
        check_iterations(iterations)
        check_iterations(iterations if eval_iterations is None else eval_iterations)
        check_choice(kernel, KERNELS, "kernel")
        check_choice(backward, BACKWARDS, "backward")
        if variance == "preset":
            variance = chosen["variance"] if mixture is None else None
        if isinstance(variance, str) and variance != "auto":
            raise ValueError(f'variance must be a number, None or "auto"; got {variance!r}')
        check_count("channels", channels)
        given = mixture_from(mixture) if isinstance(mixture, Mapping | str) else mixture
        fixed = make_mixture(given, None if variance == "auto" else variance, kernel, channels)
        if given is not None and variance == "auto":
            raise ValueError('give mixture or variance="auto", which is a Gaussian\'s')
        check_steps(step_size, iterations, fixed.step_limit)
        super().__init__(
            channels,
            bases,
            decay,
            chosen["gain"] if gain is None else gain,
            chosen["gain_lr_mult"] if gain_lr_mult is None else gain_lr_mult,
            normalise,
            chosen["initial_bases"] if initial_bases is None else initial_bases,
            channels * fixed.per_channel,
            group,
        )
        self.iterations, self.eval_iterations = iterations, eval_iterations
        self.kernel, self.backward = kernel, backward
        if backward == "none":  # no gradient would reach it; data parallelism wants to be told
            self.conv_in.requires_grad_(False)
        self.step_size: Any
        if isinstance(step_size, Tensor) and not isinstance(step_size, nn.Parameter):
            self.register_buffer("step_size", step_size)
        else:
            self.step_size = step_size
        self.principal: RunningAverage | None = None
        self._mixture = fixed
        if variance == "auto":
            # ‖value‖ is λ and value/‖value‖ its direction: a power iteration over training steps.
            self.principal = RunningAverage(torch.zeros(channels), decay)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.principal is not None:
            with torch.no_grad():
                self.principal.value.zero_()  # nothing seen yet
        super().reset_parameters()

    @property
    def variance(self) -> float | Tensor | None:
        """σ² of an evaluation pass; None for a mixture that has no such number."""
        return self.plan().mixture.variance

    def plan(self, iterations: int | None = None) -> Plan:
        if self.principal is None:
            return self._plan(self._mixture, iterations)
        return self._plan(self._following(self.principal.value), iterations)

    def _following(self, principal: Tensor) -> Gaussian:
        """σ² of λ = ‖principal‖; √C before anything was seen."""
        length = principal.norm()
        first = AUTO_RATIO * math.sqrt(self.channels)
        return Gaussian(torch.where(length > 0, length, first) / AUTO_RATIO, self.kernel)

    def _training_plan(self, sample: Tensor, weights: Tensor | None, linear: Linear | None) -> Plan:
        if self.principal is None:
            return self.plan()
        start = self.principal.begin(self.parameters())
        with torch.no_grad():
            # A power iteration over training steps, which begins in any direction.
            first = torch.arange(self.channels, device=start.device).mul(2.4).cos().to(start)
            direction = F.normalize(torch.where(start.any(), start, first), dim=0)
            if linear is None:
                product = covariance_product(sample, direction, weights)
            else:  # Cov(Wx) = W Cov(x) Wᵀ
                matrix = upcast(linear[0])
                product = covariance_product(sample, direction @ matrix, weights) @ matrix.mT
        self.principal.update(product)
        return self._plan(self._following(start))

    def _plan(self, mixture: Mixture, iterations: int | None = None) -> Plan:
        iterations = iterations or self.current_iterations
        steps = check_steps(fit_length(self.step_size, iterations), iterations, mixture.step_limit)
        return Plan(mixture, steps, self.backward)

    def extra_repr(self) -> str:
        mixture = f"mixture={self._mixture}"
        if isinstance(self._mixture, Gaussian):
            variance = "auto" if self.principal is not None else f"{self._mixture.sigma2:.4g}"
            mixture = f"variance={variance}, kernel={self.kernel}"
        return (
            f"{self.channels}, bases={self.bases.value.shape[0]}, "
            f"initial_bases={self.initial_bases}, "
            f"iterations={self.iterations}, step_size={self.step_size}, {mixture}, "
            f"eval_iterations={self.eval_iterations}, backward={self.backward}"
        )


class EMAttention(EMUnit):
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
        super().__init__(channels, bases, decay, float(not zero_init))
        self.iterations, self.eval_iterations = iterations, eval_iterations
        # No gradient would reach it; data parallelism wants to be told.
        self.conv_in.requires_grad_(False)
        self.reset_parameters()

    def plan(self, iterations: int | None = None) -> Plan:
        steps = (1.0,) * (iterations or self.current_iterations)
        return Plan(VonMisesFisher(1.0, normalise=False), steps, "none")

    def extra_repr(self) -> str:
        return (
            f"{self.channels}, bases={self.bases.value.shape[0]}, iterations={self.iterations}, "
            f"eval_iterations={self.eval_iterations}"
        )


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
