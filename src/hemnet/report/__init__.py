"""`report.html` of a run folder: one self-contained page."""

from hemnet.report.page import write_report

__all__ = ["write_report"]
