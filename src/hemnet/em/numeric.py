"""Number types and products: half precision in, float32 inside.

A softmax or a sum over ten thousand positions is not safe in half precision.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


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

    On CUDA half-precision products that accumulate and end in float32 are many times as fast
    (gradients have float32 factors in place of float16, whose range is too small for them). A CPU
    has no such product: its result would be rounded to half.
    """
    if x.device.type == "cuda" and x.dtype is not torch.float64:
        if x.dtype in HALF:
            return x.dtype
        if torch.is_autocast_enabled("cuda"):
            return torch.get_autocast_dtype("cuda")
    return upcast(x[:0]).dtype


def product(a: Tensor, b: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """a: B,I,J times b: B,J,L, both taken as `dtype`, plus bias: B,I; sums at least in float32."""
    a, b = a.to(dtype), b.to(dtype)
    if dtype in HALF:
        found = torch.bmm(a, b, out_dtype=torch.float32)
        return found if bias is None else found.add_(bias.unsqueeze(2))
    return torch.bmm(a, b) if bias is None else torch.baddbmm(bias.unsqueeze(2), a, b)
