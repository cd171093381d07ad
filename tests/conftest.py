"""Shared settings: reproducible property tests, few threads, no surprises from the outside."""

import os

# Some virtual machines announce AMX instructions and then refuse them in bfloat16 products.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "hemnet",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("hemnet")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
