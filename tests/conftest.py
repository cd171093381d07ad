"""Shared settings: reproducible property tests, few threads, no surprises from the outside."""

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

import app_server

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


# The browser tests of `hemnet app`: where there is no browser they are skipped, and it is said so
# where no one overlooks it; HEMNET_BROWSER_TESTS=required turns that into a failure.
REQUIRED = os.environ.get("HEMNET_BROWSER_TESTS") == "required"
_browser_tests = {"passed": 0, "failed": 0, "skipped": 0}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "browser" in report.keywords and (report.when == "call" or report.outcome != "passed"):
        _browser_tests[report.outcome] += 1


def _browser_tests_missed() -> bool:
    return REQUIRED and (_browser_tests["skipped"] > 0 or not _browser_tests["passed"])


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workerinput"):
        return  # one of several processes: the one that started them counts
    if exitstatus == 0 and _browser_tests_missed():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    number = _browser_tests["skipped"]
    if _browser_tests_missed():
        text = f"browser tests are required: {_browser_tests['passed']} ran, {number} were skipped"
        terminalreporter.section(text, "!", red=True, bold=True)
    elif number:
        terminalreporter.section("browser tests skipped", "!", yellow=True, bold=True)
        terminalreporter.write_line(
            f"{number} tests of `hemnet app` in a real browser did not run: no Chromium or Chrome "
            "was found. On Debian or Ubuntu: apt-get install chromium."
        )
