"""Hand-derived backward passes that keep only x and the bases of each iteration.

Plain autograd keeps the responsibilities of all T iterations and adds up 2T gradients of the size
of x. Here responsibilities are computed again, tile by tile, and both contributions to the
gradient of x are one product. `docs/method.md` derives it; in short, with G the gradient at the
bases after an iteration, A = ηG/(N_k+ε), m the weighted means and z the logits:

    u_nk = γ_nk (x_n − m_k)·A_k       = γ_nk ∂L/∂γ_nk  (the last γ has a gradient of its own, too)
    d_nk = u_nk − γ_nk Σ_j u_nj       = ∂L/∂z_nk
    ∂L/∂x_n = Σ_k γ_nk A_k + d_nk μ_k/σ²
    ∂L/∂μ_k = (1−η) G_k + Σ_n d_nk x_n/σ²      (rbf: x_n − μ_k in place of x_n)

A basis that explains nothing has a large A, but only γ·A is ever used, which is bounded. With
position weights w the N-step sees w γ in place of γ: u and the first term of ∂L/∂x carry w_n.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hemnet.em.checks import Steps
from hemnet.em.steps import floor, no_autocast, offset, scaled, wide
from hemnet.em.tiles import EStep, solve, tiles, weighted


class _Kept(NamedTuple):
    """What the forward pass keeps: x and tensors that are small beside it."""

    x: Tensor  # B,N,C
    bases: Tensor  # T+1,B,K,C
    mass: Tensor  # T,B,K
    gamma: Tensor | None  # B,N,K of the last iteration, unless rounded to half precision
    steps: Steps
    variance: float | Tensor
    weights: Tensor | None  # B,N of the positions

    def weight(self, t: int) -> Tensor:
        """N_k + ε of iteration t: B,K,1."""
        return (self.mass[t] + floor(self.mass)).unsqueeze(-1)

    def skip(self, t: int) -> Tensor:
        """∂μ⁽ᵗ⁺¹⁾/∂μ⁽ᵗ⁾ along the highway: 1 − η, and all of it where a basis explains nothing."""
        return 1 - self.steps[t] + self.steps[t] * floor(self.mass) / self.weight(t)

    def responsibilities(self, t: int, tile: slice) -> Tensor | None:
        """Those of the last iteration; None where they have to be computed again."""
        last = t == len(self.mass) - 1
        return self.gamma[:, tile] if last and self.gamma is not None else None


class _Unrolled(torch.autograd.Function):
    """The forward pass and what it keeps, the same for both backward passes."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bases: Tensor,
        steps: Steps,
        variance: float | Tensor,
        kernel: str,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        with no_autocast(x):
            solution = solve(x, bases, steps, variance, kernel, weights=weights)
        gamma = solution.responsibilities.to(x.dtype)
        ctx.kernel, ctx.bases_dtype, ctx.bases_shared = kernel, bases.dtype, bases.ndim == 2
        ctx.numbers = steps, variance  # where they are not tensors
        ctx.save_for_backward(
            x,
            solution.bases,
            solution.mass,
            gamma if x.dtype == wide(x).dtype else None,
            steps if isinstance(steps, Tensor) else None,
            variance if isinstance(variance, Tensor) else None,
            weights,
        )
        ctx.set_materialize_grads(False)
        return solution.bases[-1].to(torch.promote_types(x.dtype, bases.dtype)), gamma


def _kept(ctx: Any) -> _Kept:
    x, bases, mass, gamma, steps, variance, weights = ctx.saved_tensors
    return _Kept(
        x,
        bases,
        mass,
        gamma,
        ctx.numbers[0] if steps is None else steps,
        ctx.numbers[1] if variance is None else variance,
        weights,
    )


class Exact(_Unrolled):
    """The full gradient with respect to x, bases, step sizes and variance."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_bases: Tensor | None, grad_gamma: Tensor | None) -> tuple[Any, ...]:
        kept = _kept(ctx)
        x, bases, steps, variance = kept.x, kept.bases, kept.steps, kept.variance
        needs_x, needs_bases, needs_steps, needs_variance = ctx.needs_input_grad[:4]
        grad_steps: list[Tensor] = []
        grad_variance = bases.new_zeros(())
        with no_autocast(x):
            grad_x = torch.empty_like(x, dtype=bases.dtype) if needs_x else None
            grad = torch.zeros_like(bases[0]) if grad_bases is None else grad_bases.to(bases.dtype)
            for t in reversed(range(len(steps))):
                step, mu, last = steps[t], bases[t], t == len(steps) - 1
                grad_step, grad_mass = _n_step_gradients(kept, t, grad)
                grad_steps.append(grad_step)
                pull = step * grad / kept.weight(t)  # ∂L/∂(Σ_n γ x): B,K,C
                products = _Products(pull, grad_mass, mu, variance, ctx.kernel)
                moments, totals = torch.zeros_like(mu), torch.zeros_like(mu[..., 0])  # Σ d x, Σ d
                for tile in tiles(x):
                    part = wide(x[:, tile])
                    own = grad_gamma[:, tile] if last and grad_gamma is not None else None
                    weights = None if kept.weights is None else kept.weights[:, tile, None]
                    known = kept.responsibilities(t, tile)
                    gamma_and_d, d = products.gradients(part, known, own, weights)
                    if grad_x is not None:
                        beta = 0 if last else 1
                        grad_x[:, tile].baddbmm_(gamma_and_d, products.to_x, beta=beta)
                    if t > 0 or needs_bases or needs_variance:
                        moments.baddbmm_(d.mT, part)
                        if ctx.kernel == "rbf":
                            totals += d.sum(dim=1)
                    del gamma_and_d, d  # before the next tile takes as much
                to_mean = totals.unsqueeze(-1) * mu if ctx.kernel == "rbf" else 0.0
                grad_variance -= ((moments - 0.5 * to_mean) * mu).sum() / variance**2
                grad = kept.skip(t) * grad + (moments - to_mean) / variance
        return (
            None if grad_x is None else grad_x.to(x.dtype),
            _bases_gradient(ctx, grad) if needs_bases else None,
            _like(torch.stack(grad_steps[::-1]), steps) if needs_steps else None,
            _like(grad_variance, variance) if needs_variance else None,
            None,
            None,
        )


class Highway(_Unrolled):
    """Only the skip connections and the N-steps: responsibilities count as constants.

    The gradients at all bases are then known before x is read, so one pass over x is enough.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bases: Tensor,
        steps: Steps,
        variance: float | Tensor,
        kernel: str,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        new_bases, gamma = _Unrolled.forward(ctx, x, bases, steps, variance, kernel, weights)
        ctx.mark_non_differentiable(gamma)
        return new_bases, gamma

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_bases: Tensor | None, _: None) -> tuple[Any, ...]:
        if grad_bases is None:
            return None, None, None, None, None, None
        kept = _kept(ctx)
        x, bases, steps, variance = kept.x, kept.bases, kept.steps, kept.variance
        needs_x, needs_bases, needs_steps = ctx.needs_input_grad[:3]
        all_grad_sums, grad_steps = [], []  # last iteration first
        with no_autocast(x):
            grad = grad_bases.to(bases.dtype)
            for t in reversed(range(len(steps))):
                grad_steps.append((grad * (bases[t + 1] - bases[t])).sum() / steps[t])
                all_grad_sums.append(steps[t] * grad / kept.weight(t))
                grad = kept.skip(t) * grad
            grad_x = torch.empty_like(x, dtype=bases.dtype) if needs_x else None
            if grad_x is not None:
                e_steps = [EStep(mu, variance, ctx.kernel) for mu in bases[:-1]]
                for tile in tiles(x):
                    part = wide(x[:, tile])
                    for i, grad_sums in enumerate(all_grad_sums):
                        t = len(steps) - 1 - i
                        known = kept.responsibilities(t, tile)
                        gamma = e_steps[t](part) if known is None else known
                        gamma = weighted(gamma, kept.weights, tile)
                        grad_x[:, tile].baddbmm_(gamma, grad_sums, beta=0 if i == 0 else 1)
        return (
            None if grad_x is None else grad_x.to(x.dtype),
            _bases_gradient(ctx, grad) if needs_bases else None,
            _like(torch.stack(grad_steps[::-1]), steps) if needs_steps else None,
            None,
            None,
            None,
        )


def _n_step_gradients(kept: _Kept, t: int, grad: Tensor) -> tuple[Tensor, Tensor]:
    """∂L/∂η and ∂L/∂N_k: B,1,K of iteration t, given the gradient at the bases after it."""
    step = kept.steps[t]
    step_means = kept.bases[t + 1] - (1 - step) * kept.bases[t]  # η·m, from what was kept
    grad_step = (grad * (step_means / step - kept.bases[t])).sum()
    return grad_step, -((step_means * grad).sum(-1, keepdim=True) / kept.weight(t)).mT


class _Products:
    """The products of one iteration of the exact backward pass, two in one wherever possible.

    A product with K columns is bound by reading x, so logits and ∂L/∂γ share one with 2K columns;
    its result then becomes γ and d in place, the left factor of both gradients of x.
    """

    def __init__(
        self, pull: Tensor, grad_mass: Tensor, mu: Tensor, variance: float | Tensor, kernel: str
    ) -> None:
        weights, bias = scaled(mu, variance), offset(mu, variance, kernel)
        bias = torch.zeros_like(grad_mass) if bias is None else bias
        self.count = mu.shape[1]
        self.bias = torch.cat((bias, grad_mass), dim=-1)  # B,1,2K
        self.from_x = torch.cat((weights, pull), dim=1).mT.contiguous()  # B,C,2K
        self.to_x = torch.cat((pull, weights), dim=1)  # B,2K,C

    def gradients(
        self, x: Tensor, gamma: Tensor | None, own: Tensor | None, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """w γ and d side by side: B,n,2K, and d = ∂L/∂z alone, for a tile x: B,n,C.

        `gamma`: the responsibilities where known; `own`: a gradient at them that does not come
        through the bases; `weights`: of the positions, B,n,1.
        """
        k = self.count
        if gamma is None:
            both = torch.baddbmm(self.bias, x, self.from_x)
            _softmax_(both[..., :k])
        else:
            both = self.bias.expand(*x.shape[:2], -1).contiguous()
            both[..., :k] = gamma
            both[..., k:].baddbmm_(x, self.from_x[..., k:])
        gamma, d = both[..., :k], both[..., k:]
        if weights is not None:
            d *= weights
        if own is not None:
            d += wide(own)
        d *= gamma
        d.addcmul_(gamma, d.sum(dim=-1, keepdim=True), value=-1)
        if weights is not None:
            gamma *= weights
        return both, d


def _softmax_(logits: Tensor) -> None:
    """In place, where `Tensor.softmax` of a strided half would take two more tiles."""
    logits -= logits.amax(dim=-1, keepdim=True)
    logits.exp_()
    logits /= logits.sum(dim=-1, keepdim=True)


def _bases_gradient(ctx: Any, grad: Tensor) -> Tensor:
    return (grad.sum(dim=0) if ctx.bases_shared else grad).to(ctx.bases_dtype)


def _like(grad: Tensor, given: Any) -> Tensor:
    return grad.to(device=given.device, dtype=given.dtype)
