"""Tests that need something special of the machine, and what is said where they did not run."""

import os
from collections import Counter
from dataclasses import dataclass, field


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
