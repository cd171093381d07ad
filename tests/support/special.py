"""A pytest plugin: tests that need something special of the machine.

Where it is missing they are skipped, and it is said so where no one overlooks it; the variable
with the value `required` makes it a failure.
"""

import os
from collections import Counter
from dataclasses import dataclass, field

import pytest


@dataclass
class Special:
    variable: str
    missed: str
    counts: Counter[str] = field(default_factory=Counter)  # outcome → tests

    @property
    def required(self) -> bool:
        return os.environ.get(self.variable) == "required"

    @property
    def lacking(self) -> bool:
        return self.required and (self.counts["skipped"] > 0 or not self.counts["passed"])


SPECIAL = {
    "browser": Special(
        "HEMNET_BROWSER_TESTS",
        "of `hemnet app` in a real browser did not run: no Chromium or Chrome was found. "
        "On Debian or Ubuntu: apt-get install chromium.",
    ),
    "two_hosts": Special(
        "HEMNET_NAMESPACE_TESTS",
        "of training on two hosts did not run: `python tests/support/hosts.py` says why.",
    ),
}


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
