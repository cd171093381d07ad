"""Number types and products: half precision in, float32 inside, by the fastest routine there is.

A softmax or a sum over ten thousand positions is not safe in half precision.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
# Multiply-adds of a product from which on oneDNN is faster than torch's own choice, MKL: with
# AVX-512 on AMD, twice as fast. Below, what a call costs decides.
ONEDNN_FROM = 2**20


def upcast(tensor: Tensor) -> Tensor:
    """The tensor in float32 where it is narrower."""
    return tensor.float() if tensor.dtype in HALF else tensor


def no_autocast(tensor: Tensor) -> AbstractContextManager[None]:
    """Autocast off: it would turn float32 products into half precision."""
    device = tensor.device.type
    # Not every device has it ("meta"); an exported graph has no autocast to turn off.
    if not torch.amp.is_autocast_available(device) or torch.compiler.is_exporting():
        return nullcontext()
    return torch.autocast(device, enabled=False)


def product_dtype(x: Tensor) -> torch.dtype:
    """The type that products with x take: half where x or autocast says so, and where it pays.

    On CUDA half-precision products that accumulate and end in float32 are many times as fast. A
    CPU has no such product (its result would be rounded to half), so it computes in float32.
    """
    if x.device.type == "cuda" and x.dtype is not torch.float64:
        if x.dtype in HALF:
            return x.dtype
        if torch.is_autocast_enabled("cuda"):
            return torch.get_autocast_dtype("cuda")
    return upcast(x[:0]).dtype


def product(a: Tensor, b: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """a: B,I,J times b: B,J,L, both taken as `dtype`, plus bias: B,L; sums at least in float32."""
    a, b = a.to(dtype), b.to(dtype)
    if dtype in HALF:
        found = torch.bmm(a, b, out_dtype=torch.float32)
        return found if bias is None else found.add_(bias.unsqueeze(1))
    if not _suits_onednn(a, b):
        return torch.bmm(a, b) if bias is None else torch.baddbmm(bias.unsqueeze(1), a, b)
    linear = torch.ops.mkldnn._linear_pointwise  # x·weightᵀ; torch.compile makes use of it, too
    each = [
        linear(_dense(a[i]), _dense(b[i]).mT, None if bias is None else bias[i], "none", [], "")
        for i in range(len(a))
    ]
    return each[0].unsqueeze(0) if len(each) == 1 else torch.stack(each)


def _suits_onednn(a: Tensor, b: Tensor) -> bool:
    return (
        a.dtype is torch.float32
        and a.device.type == "cpu"
        and a.shape[1] * b.shape[1] * b.shape[2] >= ONEDNN_FROM
        and len(a) > 0
        and torch.backends.mkldnn.is_available()
        and not torch.compiler.is_compiling()
    )


def _dense(matrix: Tensor) -> Tensor:
    """The matrix or its transpose without gaps: with gaps oneDNN takes a thousand times as long."""
    return matrix if matrix.is_contiguous() or matrix.mT.is_contiguous() else matrix.contiguous()


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a: B,I,J times b: B,J,L by `product`, with gradients of every order."""
    if torch.compiler.is_compiling():
        return a @ b
    found: Tensor = _MatMul.apply(a, b)
    return found


class _MatMul(torch.autograd.Function):
    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return product(a, b, a.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (a, b), (of_a, of_b) = ctx.saved_tensors, ctx.needs_input_grad
        return matmul(grad, b.mT) if of_a else None, matmul(a.mT, grad) if of_b else None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        (found,), _ = folded(lambda *given: (_MatMul.apply(*given),), info, in_dims, inputs)
        return found, 0


def folded(
    function: Any, info: Any, in_dims: Any, inputs: tuple[Any, ...]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """The rule for `torch.func.vmap`: the mapped axis becomes part of the batch."""
    count = info.batch_size

    def rows(value: Any, dim: int | None) -> Any:
        if not isinstance(value, Tensor):
            return value
        each = value.expand(count, *value.shape) if dim is None else value.movedim(dim, 0)
        return each.flatten(0, 1)

    found = function(*map(rows, inputs, in_dims))
    return tuple(t.unflatten(0, (count, -1)) for t in found), (0,) * len(found)
