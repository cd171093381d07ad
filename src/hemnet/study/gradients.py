"""Gradient flow through unrolled highway EM: what reaches x through each iteration, by which path.

x enters iteration t twice: in the logits of the E-step and in the weighted sum of the N-step.
Each of these 2·T places gets a leaf of its own that holds a copy of x, so that one backward pass
tells them apart, exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hemnet.em import EMResult, e_step, elbo, n_step
from hemnet.em.checks import StepSize, check_iterations, check_steps
from hemnet.nn.attention import EMAttention, HighwayEMAttention
from hemnet.study.unit import find_unit, settings_of

Loss = Callable[[EMResult], Tensor]


@dataclass(frozen=True)
class GradientFlow:
    """Gradients of a loss, by iteration t = 1 … T (first index t−1)."""

    n_step: Tensor  # T,B,N,C to x through the weighted sum of iteration t
    e_step: Tensor  # T,B,N,C to x through the logits of iteration t
    bases: Tensor  # T,B,K,C at μ⁽ᵗ⁾, all that follows it included
    responsibilities: Tensor  # T,B,N,K, not a gradient: γ⁽ᵗ⁾
    elbo: Tensor  # T,B after the N-step
    step_sizes: Tensor  # T
    weights: Tensor | None = None  # B,N: how much a position counts

    @property
    def total(self) -> Tensor:
        """B,N,C: what autograd finds for x."""
        return (self.n_step + self.e_step).sum(0)

    def n_step_closed_form(self) -> Tensor:
        """T,B,N,C: Σ_k η_t · w_n γ_nk⁽ᵗ⁾/N_k⁽ᵗ⁾ · ∂loss/∂μ_k⁽ᵗ⁾, which `n_step` must equal."""
        gamma = self.responsibilities
        if self.weights is not None:
            gamma = gamma * self.weights[..., None]
        weight = gamma / gamma.sum(2, keepdim=True) * self.step_sizes.view(-1, 1, 1, 1)
        return weight @ self.bases


def effective_weights(step_sizes: Tensor) -> Tensor:
    """T: η_t · Π_{s>t} (1−η_s), the share of ∂loss/∂μ⁽ᵀ⁾ that highways carry to iteration t.

    η(1−η)^(T−t) for one η.
    """
    later = (1 - step_sizes).flip(0).cumprod(0).flip(0)  # Π_{s≥t}
    return step_sizes * torch.cat((later[1:], torch.ones_like(later[:1])))


class Unrolled:
    """T iterations on leaf copies of x: B,N,C; `gradients(loss)` of a loss on `result`."""

    def __init__(
        self,
        x: Tensor,
        bases: Tensor,
        iterations: int = 3,
        step_size: StepSize = 0.5,
        variance: float | Tensor | None = None,
        kernel: str = "dot",
        unit_length: bool = False,
        weights: Tensor | None = None,
    ) -> None:
        check_iterations(iterations)
        steps = check_steps(step_size, iterations)
        self.e_leaves: list[Tensor] = []
        self.n_leaves: list[Tensor] = []
        self.bases: list[Tensor] = []  # μ⁽¹⁾ … μ⁽ᵀ⁾
        self.responsibilities: list[Tensor] = []
        bounds: list[Tensor] = []
        for step in steps:
            for leaves in (self.e_leaves, self.n_leaves):
                leaves.append(x.detach().clone().requires_grad_())
            gamma = e_step(self.e_leaves[-1], bases, variance, kernel)
            bases = n_step(self.n_leaves[-1], bases, gamma, step, weights)
            if unit_length:
                bases = F.normalize(bases, dim=-1)
            self.bases.append(bases)
            self.responsibilities.append(gamma)
            with torch.no_grad():
                bounds.append(elbo(x, bases, gamma, variance, weights))
        self.result = EMResult(self.bases[-1], self.responsibilities[-1])
        self.elbo = torch.stack(bounds)
        self.weights = weights
        self.step_sizes = torch.as_tensor(steps, dtype=x.dtype, device=x.device).detach()

    def gradients(self, loss: Tensor) -> GradientFlow:
        wanted = [*self.n_leaves, *self.e_leaves, *self.bases]
        found = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
        n, e, mu = (torch.stack(part) for part in _thirds(found))
        gamma = torch.stack([g.detach() for g in self.responsibilities])
        return GradientFlow(n, e, mu, gamma, self.elbo, self.step_sizes, self.weights)


def _thirds(items: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, ...]]:
    length = len(items) // 3
    return (items[i * length : (i + 1) * length] for i in range(3))


def gradient_flow(
    x: Tensor,
    bases: Tensor,
    loss: Loss,
    iterations: int = 3,
    step_size: StepSize = 0.5,
    variance: float | Tensor | None = None,
    kernel: str = "dot",
) -> GradientFlow:
    """Highway EM's gradient flow for a loss on its result. x: B,N,C, bases: K,C or B,K,C."""
    unrolled = Unrolled(x, bases, iterations, step_size, variance, kernel)
    return unrolled.gradients(loss(unrolled.result))


@contextmanager
def leaf_copies(unit: HighwayEMAttention | EMAttention, kept: list[Unrolled]) -> Iterator[None]:
    """Inside, the unit's passes run on leaf copies and are appended to `kept`.

    The unit's output is what it always is; no gradient goes past the leaves to what is before it.
    """

    def attend(
        x: Tensor, bases: Tensor, variance: float | Tensor, weights: Tensor | None = None
    ) -> EMResult:
        how = settings_of(unit)
        steps, kernel, unit_length = how.steps, how.kernel, how.unit_length
        kept.append(Unrolled(x, bases, len(steps), steps, variance, kernel, unit_length, weights))
        result = kept[-1].result
        if isinstance(unit, EMAttention):  # its results are constants
            return EMResult(*(t.detach() for t in result))
        return result

    unit._attend = attend  # type: ignore[method-assign]
    try:
        yield
    finally:
        del unit._attend


def model_gradient_flow(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> GradientFlow:
    """The gradient flow in a model's EM unit; `loss` is called with a copy of the model.

    The model itself is left as it is: its batch norms, bases, mode and gradients.
    """
    twin = copy.deepcopy(model)
    unit = find_unit(twin)
    if unit is None:
        raise ValueError(f"{type(model).__name__} has no EM unit whose gradients could be read")
    kept: list[Unrolled] = []
    with leaf_copies(unit, kept):
        value = loss(twin)
    return kept[-1].gradients(value)
