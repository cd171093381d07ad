"""Mixtures that highway EM can fit: each one class that says all that is peculiar to it.

A component belongs to an exponential family with sufficient statistics t(x). Its bases are its
mean parameters m = E t(x), so that the M-step is a weighted mean of t(x) and the damped step is
m ← (1−η) m + η·mean. In these coordinates, and in general in no others, every such step raises
the likelihood bound (Proposition 1 of the paper; `docs/method.md` has the law for all families).

To add a mixture, write one class here: what the logits are, and what its bases are.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from hemnet.em.checks import check_choice, check_positive, check_shapes
from hemnet.em.numeric import upcast

KERNELS = ("dot", "rbf")


class Mixture(ABC):
    """K components with equal mixing weights; x: B,N,C features, bases: …,K,P mean parameters."""

    linear: ClassVar[bool] = True
    """t(x) = x, so that a linear map in front of x can be applied to the bases instead."""
    step_limit: ClassVar[float] = 1.0
    """Every step size below this raises the bound."""
    per_channel: ClassVar[int] = 1
    """P / C."""
    exact: bool = True
    """The E-step is the exact posterior, so that it never lowers the bound either."""

    @property
    def variance(self) -> float | Tensor | None:
        """σ² where the logits are a product with x over σ²; None where there is no such number."""
        return None

    def statistics(self, x: Tensor) -> Tensor:
        """t(x): B,N,P."""
        return x

    def start(self, means: Tensor) -> Tensor:
        """Mean parameters …,K,P to start with from means …,K,C."""
        return means

    @abstractmethod
    def logits(self, bases: Tensor) -> tuple[Tensor, Tensor]:
        """Weight …,K,P and bias …,K: the E-step is the softmax of t(x)·weight + bias."""

    def move(self, bases: Tensor, means: Tensor, step: float | Tensor) -> Tensor:
        """(1−η)·bases + η·means; exactly `means` for η = 1."""
        return torch.lerp(bases, means, step.to(means.dtype) if isinstance(step, Tensor) else step)

    def means(self, bases: Tensor) -> Tensor:
        """The components' means …,K,C, which features are rebuilt from."""
        return bases

    def log_densities(self, x: Tensor, bases: Tensor) -> Tensor:
        """ln p(x_n|k): B,N,K, for the bound and the likelihood."""
        weight, bias = self.logits(bases)
        return self.statistics(x) @ weight.mT + bias.unsqueeze(-2)


@dataclasses.dataclass(frozen=True, eq=False)
class Gaussian(Mixture):
    """Gaussians with the covariance σ²I.

    Attributes:
        sigma2: σ², a number or a tensor that may require grad.
        kernel: "dot", the paper's softmax of x·μ/σ², or "rbf", the mixture's exact posterior. Only
            with "rbf" is it certain that an E-step never lowers the bound.
    """

    sigma2: float | Tensor
    kernel: str = "dot"

    step_limit = 2.0  # the bound is a parabola in η with its top at 1

    def __post_init__(self) -> None:
        check_choice(self.kernel, KERNELS, "kernel")
        check_positive(self.sigma2, "variance")

    def __str__(self) -> str:
        return f"σ² {float(self.sigma2):.3g}, {self.kernel} kernel"

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.kernel == "rbf"

    @property
    def variance(self) -> float | Tensor:
        return self.sigma2

    def logits(self, bases: Tensor) -> tuple[Tensor, Tensor]:
        weight = bases / self.sigma2  # dividing K·C numbers is cheaper than N·K
        if self.kernel == "dot":
            return weight, bases.new_zeros(bases.shape[:-1])
        return weight, (bases * weight).sum(dim=-1) * -0.5

    def log_densities(self, x: Tensor, bases: Tensor) -> Tensor:
        # Distances through products (‖x‖² − 2x·μ + ‖μ‖²), centred first so that little cancels.
        centre = x.mean(dim=1, keepdim=True).detach()
        x, bases = x - centre, bases - centre
        squares = x.square().sum(-1, keepdim=True) + bases.square().sum(-1).unsqueeze(-2)
        variance = torch.as_tensor(self.sigma2, dtype=x.dtype, device=x.device)
        normaliser = 0.5 * x.shape[-1] * (2 * math.pi * variance).log()
        return (squares - 2 * x @ bases.mT) / (-2 * self.sigma2) - normaliser


@dataclasses.dataclass(frozen=True, eq=False)
class VonMisesFisher(Mixture):
    """Directions: densities that grow with κ·cos of the angle between x and a unit vector μ.

    EMANet's unit is the case κ = 1, full steps, features as long as they are.

    Attributes:
        concentration: κ.
        normalise: scale the features to unit length, too. Without it a longer feature is more
            certain of its basis and counts more.
    """

    concentration: float | Tensor = 1.0
    normalise: bool = True

    def __post_init__(self) -> None:
        check_positive(self.concentration, "concentration")

    @property
    def linear(self) -> bool:  # type: ignore[override]
        return not self.normalise

    @property
    def variance(self) -> float | Tensor:
        return 1 / self.concentration

    def statistics(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) if self.normalise else x

    def start(self, means: Tensor) -> Tensor:
        return self.statistics(means)

    def logits(self, bases: Tensor) -> tuple[Tensor, Tensor]:
        return self.concentration * bases, bases.new_zeros(bases.shape[:-1])

    def move(self, bases: Tensor, means: Tensor, step: float | Tensor) -> Tensor:
        # κ is fixed, so mean parameters lie on a sphere: back to it, along which the bound rises.
        return F.normalize(super().move(bases, means, step), dim=-1)


@dataclasses.dataclass(frozen=True, eq=False)
class DiagonalGaussian(Mixture):
    """Gaussians with a variance of their own for each channel, fitted along with the means.

    Its bases are first and second moments, …,K,2C; `means` and `variances` read them.

    Attributes:
        initial: the variance that every channel of every component starts with.
        floor: the least variance; keeps a component that explains one point from collapsing on it.
    """

    initial: float = 1.0
    floor: float = 1e-3

    linear, per_channel = False, 2

    def __post_init__(self) -> None:
        check_positive(self.initial, "initial")
        check_positive(self.floor, "floor")

    def statistics(self, x: Tensor) -> Tensor:
        return torch.cat((x, x.square()), dim=-1)

    def start(self, means: Tensor) -> Tensor:
        return torch.cat((means, means.square() + self.initial), dim=-1)

    def means(self, bases: Tensor) -> Tensor:
        return bases[..., : bases.shape[-1] // 2]

    def variances(self, bases: Tensor) -> Tensor:
        """…,K,C."""
        mean, square = bases.chunk(2, dim=-1)
        return (square - mean.square()).clamp_min(self.floor)

    def logits(self, bases: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = self.means(bases), self.variances(bases)
        weight = torch.cat((mean / variance, -0.5 / variance), dim=-1)
        return weight, -0.5 * (mean.square() / variance + variance.log()).sum(dim=-1)

    def log_densities(self, x: Tensor, bases: Tensor) -> Tensor:
        return super().log_densities(x, bases) - 0.5 * x.shape[-1] * math.log(2 * math.pi)


@dataclasses.dataclass(frozen=True, eq=False)
class Bernoulli(Mixture):
    """Channels that are 0 or 1 (or in between, as probabilities), each with its own p_k.

    Attributes:
        margin: p is kept this far from 0 and 1.
    """

    margin: float = 1e-4

    def __post_init__(self) -> None:
        if not 0 < self.margin < 0.5:
            raise ValueError(f"margin must lie between 0 and 0.5; got {self.margin!r}")

    def logits(self, bases: Tensor) -> tuple[Tensor, Tensor]:
        p = bases.clamp(self.margin, 1 - self.margin)
        return p.log() - (1 - p).log(), (1 - p).log().sum(dim=-1)


MIXTURES: dict[str, type[Mixture]] = {
    cls.__name__: cls for cls in (Gaussian, VonMisesFisher, DiagonalGaussian, Bernoulli)
}


def mixture_from(description: Any) -> Mixture:
    """A mixture from its name, or from a mapping with the `name` and its settings."""
    settings = dict(description) if isinstance(description, dict) else {"name": description}
    name = settings.pop("name", None)
    if name not in MIXTURES:
        raise ValueError(f"mixture must be one of {', '.join(MIXTURES)}; got {description!r}")
    try:
        return MIXTURES[name](**settings)
    except TypeError:
        fields = ", ".join(field.name for field in dataclasses.fields(MIXTURES[name]))  # type: ignore[arg-type]
        raise ValueError(f"{name} has the settings {fields}; got {description!r}") from None


def describe(mixture: Mixture) -> dict[str, Any]:
    """What `mixture_from` makes the same mixture of: plain values, as JSON can hold them."""
    values = dataclasses.asdict(mixture)  # type: ignore[call-overload]
    plain = {k: v.item() if isinstance(v, Tensor) else v for k, v in values.items()}
    return {"name": type(mixture).__name__, **plain}


def make_mixture(
    mixture: Mixture | None, variance: float | Tensor | None, kernel: str, channels: int
) -> Mixture:
    """The mixture that was given, or the Gaussian that `variance` and `kernel` are short for."""
    if mixture is None:
        variance = math.sqrt(channels) if variance is None else variance
        check_positive(variance, "variance")
        return Gaussian(variance.reshape(()) if isinstance(variance, Tensor) else variance, kernel)
    if not isinstance(mixture, Mixture):
        raise TypeError(f"mixture must be a hemnet.Mixture; got {type(mixture).__name__}")
    if variance is not None or kernel != "dot":
        raise ValueError("give mixture, or variance and kernel: they are short for a Gaussian")
    return mixture


def prepare(
    x: Tensor,
    bases: Tensor,
    mixture: Mixture | None,
    variance: float | Tensor | None = None,
    kernel: str = "dot",
    weights: Tensor | None = None,
    linear: tuple[Tensor, Tensor | None] | None = None,
    responsibilities: Tensor | None = None,
) -> tuple[Mixture, Tensor]:
    """Check these arguments of the package; the mixture, and its mean parameters B,K,P."""
    weight, shift = linear or (None, None)
    given = {"x": (x, "(batch, positions, channels)"), "linear": (weight, "(mapped, channels)")}
    sizes = check_shapes(**given, bias=(shift, "(mapped)"))
    channels = sizes.get("mapped", sizes["channels"])
    mixture = make_mixture(mixture, variance, kernel, channels)
    own = getattr(bases, "shape", ())[-1:] == (channels * mixture.per_channel,)
    axis = "channels" if linear is None else "mapped"
    axis = "parameters" if own and mixture.per_channel > 1 else axis
    one = isinstance(weights, Tensor) and weights.shape[:1] == (1,)
    check_shapes(
        **given,
        bases=(bases, f"(bases, {axis}) or (batch, bases, {axis})"),
        weights=(weights, "(1, positions)" if one else "(batch, positions)"),
        responsibilities=(responsibilities, "(batch, positions, bases)"),
    )
    if weights is not None and weights.requires_grad:
        raise ValueError("weights are constants: no gradient is computed for them")
    return mixture, initial(bases, x, mixture, channels)


def initial(bases: Tensor, x: Tensor, mixture: Mixture, channels: int) -> Tensor:
    """Bases …,K,C, or mean parameters …,K,P as they are, as mean parameters B,K,P of images x.

    They are in the type that EM computes in.
    """
    found = mixture.start(upcast(bases)) if bases.shape[-1] == channels else upcast(bases)
    return found.expand(x.shape[0], *found.shape[-2:]).to(upcast(x[:0]).dtype)


def mean_statistics(sums: Tensor, mass: Tensor, bases: Tensor) -> Tensor:
    """sums: B,K,P = Σ_n γ t(x) and mass: B,K = N_k  →  means of t(x), B,K,P.

    The current basis makes up what a mass lacks to a tiny least one: a basis that explains nothing
    (N_k underflows) stays where it is, where 0/0 would be NaN; any other is not touched.
    """
    # Far from under- and overflow. It is not added to the mass: ONNX optimizers remove `+ 1e-19`.
    tiny = float(torch.finfo(mass.dtype).tiny ** 0.5)
    whole = mass.clamp_min(tiny)
    return (sums + (whole - mass).unsqueeze(-1) * bases) / whole.unsqueeze(-1)
