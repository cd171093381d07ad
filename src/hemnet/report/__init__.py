"""`report.html` of a run folder: one file to look at, with everything inside it."""

from hemnet.report.page import write_report

__all__ = ["write_report"]
