"""Gradient flow through unrolled highway EM: what reaches x through each iteration and path.

x enters iteration t twice: in the logits of the E-step and in the weighted sum of the N-step.
Each of these 2·T places gets its own leaf copy of x, so that one backward pass separates them
exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hemnet.em import EMResult, Mixture, elbo
from hemnet.em.checks import Steps, StepSize, check_iterations, check_steps
from hemnet.em.mixtures import initial, make_mixture
from hemnet.em.solver import iterate
from hemnet.em.sources import Linear, apply_linear
from hemnet.em.statistics import Statistics, softmax_of
from hemnet.inspection.em_trace import find_unit
from hemnet.nn.health import Health
from hemnet.nn.plan import Plan

ResultLoss = Callable[[EMResult], Tensor]


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
    health: Health | None = None  # of the unit, in a model

    @property
    def total(self) -> Tensor:
        """B,N,C: what autograd finds for x."""
        return (self.n_step + self.e_step).sum(0)

    def means(self) -> dict[str, Tensor]:
        """Mean absolute gradients and the bound per position, by iteration, and totals.

        The flow of a model also has `ratio`, λ/σ² of the unit's features.
        """
        found = {
            "elbo": self.elbo.mean(1) / self.n_step.shape[2],
            "n_step": self.n_step.abs().mean((1, 2, 3)),
            "e_step": self.e_step.abs().mean((1, 2, 3)),
            "bases": self.bases.abs().mean((1, 2, 3)),
            "total": self.total.abs().mean(),
            "n_step_total": self.n_step.sum(0).abs().mean(),
            "e_step_total": self.e_step.sum(0).abs().mean(),
        }
        if self.health is not None:
            found["ratio"] = torch.tensor(self.health.ratio)
        return found

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


class LeafCopies:
    """x: B,N,C with a leaf copy for each place where it enters an iteration."""

    def __init__(self, x: Tensor, weights: Tensor | None = None) -> None:
        self.x, self.weights = x, weights
        self.e_leaves: list[Tensor] = []
        self.n_leaves: list[Tensor] = []

    def __call__(self, weight: Tensor, bias: Tensor, keep: bool) -> Statistics:
        for leaves in (self.e_leaves, self.n_leaves):
            leaves.append(self.x.detach().clone().requires_grad_())
        gamma = softmax_of(self.e_leaves[-1], weight, bias)
        counted = gamma if self.weights is None else gamma * self.weights.unsqueeze(-1).to(gamma)
        return Statistics(counted.sum(dim=1), counted.mT @ self.n_leaves[-1], gamma)


class Unrolled:
    """T iterations on leaf copies of x: B,N,C; `gradients(loss)` of a loss on `result`."""

    def __init__(
        self,
        x: Tensor,
        bases: Tensor,
        steps: Steps,
        mixture: Mixture,
        weights: Tensor | None = None,
    ) -> None:
        self.leaves = LeafCopies(mixture.statistics(x), weights)
        self.bases: list[Tensor] = []  # μ⁽¹⁾ … μ⁽ᵀ⁾
        self.responsibilities: list[Tensor] = []
        bounds: list[Tensor] = []
        start = initial(bases, x, mixture, x.shape[-1])
        for _, found, moved in iterate(self.leaves, start, steps, mixture, keep=True):
            self.bases.append(moved)
            self.responsibilities.append(found.responsibilities)
            with torch.no_grad():
                gamma = found.responsibilities
                bounds.append(elbo(x, moved, gamma, weights=weights, mixture=mixture))
        self.result = EMResult(self.bases[-1], self.responsibilities[-1])
        self.elbo = torch.stack(bounds)
        self.weights = weights
        self.step_sizes = torch.as_tensor(steps, dtype=x.dtype, device=x.device).detach()

    def gradients(self, loss: Tensor) -> GradientFlow:
        wanted = [*self.leaves.n_leaves, *self.leaves.e_leaves, *self.bases]
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
    loss: ResultLoss,
    iterations: int = 3,
    step_size: StepSize = 0.5,
    variance: float | Tensor | None = None,
    kernel: str = "dot",
) -> GradientFlow:
    """Highway EM's gradient flow for a loss on its result. x: B,N,C, bases: K,C or B,K,C."""
    check_iterations(iterations)
    steps = check_steps(step_size, iterations)
    unrolled = Unrolled(x, bases, steps, make_mixture(None, variance, kernel, x.shape[-1]))
    return unrolled.gradients(loss(unrolled.result))


class LeafSolver:
    """A solver for EM units that runs on leaf copies and keeps each run.

    The unit's output is unchanged; no gradient reaches the layers before it.
    """

    def __init__(self) -> None:
        self.kept: list[Unrolled] = []

    def __call__(
        self,
        x: Tensor,
        bases: Tensor,
        plan: Plan,
        *,
        weights: Tensor | None = None,
        linear: Linear | None = None,
        group: object = None,
    ) -> EMResult:
        features = apply_linear(x, linear)
        self.kept.append(Unrolled(features, bases, plan.steps, plan.mixture, weights))
        result = self.kept[-1].result
        if plan.backward == "none":  # its results are constants
            return EMResult(*(t.detach() for t in result))
        return result


def model_gradient_flow(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> GradientFlow:
    """The gradient flow in a model's EM unit; `loss` is called with a copy of the model.

    Batch norms, bases, mode and gradients of the model itself do not change.
    """
    twin = copy.deepcopy(model)
    unit = find_unit(twin)
    if unit is None:
        raise ValueError(f"{type(model).__name__} has no EM unit whose gradients could be read")
    unit.solver = solver = LeafSolver()
    value = loss(twin)
    return replace(solver.kept[-1].gradients(value), health=unit.health())
