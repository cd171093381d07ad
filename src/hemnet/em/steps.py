"""The three steps of highway EM as functions of their own.

x: B,N,C features; bases: K,C (shared by the batch) or B,K,C; responsibilities: B,N,K.
Half-precision tensors are computed in float32 and handed back in their own type.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hemnet.em.checks import (
    channels_of,
    check_features,
    check_responsibilities,
    check_steps,
    check_weights,
)
from hemnet.em.mixtures import Mixture, make_mixture
from hemnet.em.numeric import no_autocast, upcast
from hemnet.em.statistics import softmax_of


def e_step(
    x: Tensor,
    bases: Tensor,
    variance: float | Tensor | None = None,
    kernel: str = "dot",
    *,
    mixture: Mixture | None = None,
) -> Tensor:
    """Responsibilities: how much each basis explains each position.

    Args:
        x: features B,N,C.
        bases: K,C or B,K,C.
        variance: σ²; √C where None.
        kernel: "dot" is the softmax over the bases of x·μ / σ²; "rbf" that of −‖x−μ‖² / 2σ²,
            the exact posterior of the mixture.
        mixture: another mixture than that Gaussian.

    Returns:
        B,N,K; the K responsibilities of a position sum to 1.
    """
    mixture = make_mixture(mixture, variance, kernel, channels_of(x))
    check_features(x, bases, None, mixture.width(x.shape[-1]))
    with no_autocast(x):
        logits = mixture.logits(parameters(bases, x.shape[-1], mixture))
        return softmax_of(mixture.statistics(upcast(x)), *logits).to(x.dtype)


def n_step(
    x: Tensor,
    bases: Tensor,
    responsibilities: Tensor,
    step_size: float | Tensor,
    weights: Tensor | None = None,
    *,
    mixture: Mixture | None = None,
) -> Tensor:
    """Bases after one damped Newton step: (1−η)·bases + η·(weighted means of x).

    Args:
        x: features B,N,C.
        bases: K,C or B,K,C.
        responsibilities: B,N,K.
        step_size: η in (0, 2), for other mixtures than a Gaussian in (0, 1]; 1 is plain EM.
        weights: how much each position counts, B,N; None: each once.
        mixture: another mixture than a Gaussian.

    Returns:
        The moved bases, B,K,C.
    """
    mixture = make_mixture(mixture, None, "dot", channels_of(x))
    check_features(x, bases, None, mixture.width(x.shape[-1]))
    check_responsibilities(responsibilities, bases, x)
    check_weights(weights, x)
    (step,) = check_steps(step_size, 1, mixture.step_limit)
    gamma = upcast(responsibilities)
    if weights is not None:
        gamma = gamma * weights.unsqueeze(-1).to(gamma.dtype)
    with no_autocast(x):
        start, t = parameters(bases, x.shape[-1], mixture), mixture.statistics(upcast(x))
        sums = gamma.mT @ t
        start = start.expand_as(sums).to(sums.dtype)
        moved = mixture.move(start, mean_statistics(sums, gamma.sum(dim=1), start), step)
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
        return (upcast(responsibilities) @ upcast(bases)).to(responsibilities.dtype)


def mean_statistics(sums: Tensor, mass: Tensor, bases: Tensor) -> Tensor:
    """sums: B,K,P = Σ_n γ t(x) and mass: B,K = N_k  →  means of t(x), B,K,P.

    The current basis makes up what a mass lacks to a tiny least one: a basis that explains nothing
    (N_k underflows) stays where it is, where 0/0 would be NaN; any other is not touched.
    """
    # Far from under- and overflow. It is not added to the mass: ONNX optimizers remove `+ 1e-19`.
    tiny = float(torch.finfo(mass.dtype).tiny ** 0.5)
    whole = mass.clamp_min(tiny)
    return (sums + (whole - mass).unsqueeze(-1) * bases) / whole.unsqueeze(-1)


def parameters(bases: Tensor, channels: int, mixture: Mixture) -> Tensor:
    """Bases …,K,C, or mean parameters …,K,P as they are, as the mixture's mean parameters."""
    return mixture.start(upcast(bases)) if bases.shape[-1] == channels else upcast(bases)
