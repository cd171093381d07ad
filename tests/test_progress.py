"""Progress bars: on terminals alone."""

import pytest

from hemnet.progress import log_console, progress_bar


def test_notebooks_and_ci_are_no_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They set FORCE_COLOR, and their logs would fill with bars."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not log_console().is_terminal
    with progress_bar() as bar:
        task = bar.add_task("counting", total=3)
        bar.advance(task)
    assert capsys.readouterr().err == ""
