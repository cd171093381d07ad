"""The three steps of highway EM on a mixture with K means and the covariance σ²I.

x: B,N,C features; bases: K,C (shared by the batch) or B,K,C; responsibilities: B,N,K.
Half-precision tensors are computed in float32 and handed back in their own type: a softmax or a
sum over ten thousand positions is not safe in half precision.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from hemnet.em.checks import (
    KERNELS,
    check_features,
    check_kernel,
    check_responsibilities,
    check_steps,
    check_variance,
    check_weights,
)

__all__ = ["KERNELS", "e_step", "n_step", "r_step"]


def e_step(
    x: Tensor, bases: Tensor, variance: float | Tensor | None = None, kernel: str = "dot"
) -> Tensor:
    """Responsibilities: how much each basis explains each position.

    Args:
        x: features B,N,C.
        bases: K,C or B,K,C.
        variance: σ²; √C where None.
        kernel: "dot" is the softmax over the bases of x·μ / σ²; "rbf" that of −‖x−μ‖² / 2σ²,
            the exact posterior of the mixture.

    Returns:
        B,N,K; the K responsibilities of a position sum to 1.
    """
    check_features(x, bases)
    check_kernel(kernel)
    variance = check_variance(variance, x.shape[-1])
    with no_autocast(x):
        logits, bias = wide(x) @ scaled(bases, variance).mT, offset(bases, variance, kernel)
        return (logits if bias is None else logits + bias).softmax(dim=-1).to(x.dtype)


def n_step(
    x: Tensor,
    bases: Tensor,
    responsibilities: Tensor,
    step_size: float | Tensor,
    weights: Tensor | None = None,
) -> Tensor:
    """Bases after one damped Newton step: (1−η)·bases + η·(weighted means of x).

    Args:
        x: features B,N,C.
        bases: K,C or B,K,C.
        responsibilities: B,N,K.
        step_size: η in (0, 1]; 1 is plain EM.
        weights: how much each position counts, B,N; None: each once.

    Returns:
        The moved bases, B,K,C.
    """
    check_features(x, bases)
    check_responsibilities(responsibilities, bases, x)
    check_weights(weights, x)
    (step,) = check_steps(step_size, 1)
    gamma = wide(responsibilities)
    if weights is not None:
        gamma = gamma * weights.unsqueeze(-1).to(gamma.dtype)
    with no_autocast(x):
        means = weighted_means(gamma.mT @ wide(x), gamma.sum(dim=1), wide(bases))
        moved = move(wide(bases).expand_as(means), means, step)
    return moved.to(torch.promote_types(x.dtype, bases.dtype))


def r_step(responsibilities: Tensor, bases: Tensor) -> Tensor:
    """Features rebuilt from the bases.

    Args:
        responsibilities: B,N,K.
        bases: B,K,C or K,C.

    Returns:
        responsibilities · bases, B,N,C.
    """
    check_responsibilities(responsibilities, bases)
    with no_autocast(responsibilities):
        return (wide(responsibilities) @ wide(bases)).to(responsibilities.dtype)


def weighted_means(sums: Tensor, mass: Tensor, bases: Tensor) -> Tensor:
    """sums: B,K,C = Σ_n γ x and mass: B,K = N_k  →  means B,K,C.

    The current basis counts as a tiny extra observation: a basis that explains nothing (N_k
    underflows) stays where it is, where 0/0 would be NaN; any other is unchanged to rounding.
    """
    tiny = floor(mass)
    return (sums + tiny * bases) / (mass + tiny).unsqueeze(-1)


def move(bases: Tensor, means: Tensor, step: float | Tensor) -> Tensor:
    """(1−η)·bases + η·means; exactly `means` for η = 1."""
    return torch.lerp(bases, means, step.to(means.dtype) if isinstance(step, Tensor) else step)


def floor(mass: Tensor) -> float:
    """The weight of the extra observation: √(smallest number), far from under- and overflow."""
    return float(torch.finfo(mass.dtype).tiny ** 0.5)


def scaled(bases: Tensor, variance: float | Tensor) -> Tensor:
    """μ/σ²: dividing K·C numbers before the product is cheaper than N·K after it."""
    return wide(bases) / variance


def offset(bases: Tensor, variance: float | Tensor, kernel: str) -> Tensor | None:
    """What the logits need beside x·μ/σ²: −‖μ‖²/2σ² (…,1,K) for the RBF kernel."""
    if kernel == "dot":
        return None
    return (wide(bases).square().sum(dim=-1) / (-2 * variance)).unsqueeze(-2)


def wide(tensor: Tensor) -> Tensor:
    """The tensor in float32 where it is narrower."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def no_autocast(tensor: Tensor) -> AbstractContextManager[None]:
    """Autocast off: it would turn the products back into half precision."""
    device = tensor.device.type
    if not torch.amp.is_autocast_available(device):  # such as "meta"
        return nullcontext()
    return torch.autocast(device, enabled=False)
