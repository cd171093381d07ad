"""Shared settings: reproducible property tests, few threads, no surprises from the outside."""

import os

from support.special import SPECIAL

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

from support import app_server

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


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[app_server.Server]:
    """`hemnet app` with a small model, for all tests that ask it something."""
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    with app_server.running(tmp_path_factory.mktemp("app"), "--max-upload", "0.5") as found:
        yield found


# Tests that need something special of the machine. Where it is missing they are skipped, and it is
# said so where no one overlooks it; the variable with the value `required` makes it a failure.


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for mark, special in SPECIAL.items():
        if mark in report.keywords and (report.when == "call" or report.outcome != "passed"):
            special.counts[report.outcome] += 1


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workerinput"):  # one of several test processes has some tests only
        return
    if exitstatus == 0 and any(special.lacking for special in SPECIAL.values()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for mark, special in SPECIAL.items():
        ran, skipped = special.counts["passed"], special.counts["skipped"]
        if special.lacking:
            text = f"{mark} tests are required: {ran} ran, {skipped} were skipped"
            terminalreporter.section(text, "!", red=True, bold=True)
        elif skipped:
            terminalreporter.section(f"{mark} tests skipped", "!", yellow=True, bold=True)
            terminalreporter.write_line(f"{skipped} tests {special.missed}")
