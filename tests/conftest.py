"""Shared settings: reproducible property tests, few threads, no surprises from the outside."""

import logging
import os

# Some virtual machines announce AMX instructions and then refuse them in bfloat16 products.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The tensors here are tiny: a second thread only waits, and for long where cores are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Inductor compiles where it is asked to: no pool of further processes, kept until the end.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from support import app_server, crashes, longest_first, special

settings.register_profile(
    "hemnet",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("hemnet")


def pytest_configure(config: pytest.Config) -> None:
    for plugin in (crashes, longest_first, special):
        config.pluginmanager.register(plugin)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.manual_seed(0)
    # Other libraries change what is heard in the whole process.
    logging.disable(logging.NOTSET)
    logging.root.setLevel(logging.WARNING)
    log = logging.getLogger("hemnet")
    log.parent, log.propagate, log.disabled = logging.root, True, False
    log.setLevel(logging.NOTSET)
    log.filters.clear()
    torch._dynamo.reset()  # what one test compiled counts against the next one's limit


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[app_server.Server]:
    """`hemnet app` with a small model, for all tests that ask it something."""
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    with app_server.running(tmp_path_factory.mktemp("app"), "--max-upload", "0.5") as found:
        yield found
