"""What the documents show is executed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def snippets(name: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL))


@pytest.mark.parametrize(
    "name", ["README.md", "docs/evaluation.md", "docs/prediction.md", "docs/export.md"]
)
def test_python_snippets_run_from_top_to_bottom(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = snippets(name)
    assert code
    monkeypatch.chdir(tmp_path)  # what a snippet saves
    exec(compile(code, name, "exec"), {})


@pytest.mark.parametrize(
    "name",
    [
        *("README.md", "CONTRIBUTING.md", "docs/method.md", "docs/evaluation.md"),
        *("docs/prediction.md", "docs/export.md", "docs/studies.md", "docs/app.md"),
    ],
)
def test_links_to_files_exist(name: str) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / name).read_text()):
        if not target.startswith("http"):
            assert ((ROOT / name).parent / target).exists(), f"{name} points to {target}"


def test_readme_shows_both_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    assert "pip install hemnet" not in text
