"""Shared settings: reproducible property tests, few threads, no surprises from the outside."""

import os

# Some virtual machines announce AMX instructions and then refuse them in bfloat16 products.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The tensors here are tiny: a second thread only waits, and for long where cores are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")

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
def _fresh() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()  # what one test compiled counts against the next one's limit
