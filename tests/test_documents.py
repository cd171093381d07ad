"""What the documents show is executed, what they name exists, and the site builds."""

import argparse
import doctest
import importlib
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hemnet import cli
from hemnet.study import grid
from hemnet.training.config import LOSSES
from hemnet.training.config_parser import known_keys
from support import documents
from support.documents import (
    PAGES,
    PROGRAMS,
    REPLACED,
    ROOT,
    blocks,
    commands,
    run_pipeline,
    run_python,
)
from support.documents_world import make_world

GENERATED = {"explore.md", "own_photographs.md", "commands.md"}  # by docs/hooks.py
# Blocks without a language that are no commands: (page, first line).
PLAIN = {("README.md", "bases ← (1 − η) · bases + η · means")}
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
RUNNABLE = [
    name for name in NAMES if any(b.language in ("python", "bash") for b in blocks(ROOT / name))
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


def outcomes_here(
    cells: Any, out: Path, count: int, signals: Any
) -> Iterator[tuple[str, str | None]]:
    """A study's runs in this process: workers take seconds to start."""
    for cell in cells:
        yield cell.name, grid.run_cell(cell, out)


@pytest.mark.skipif(sys.platform == "win32", reason="the commands are those of a Unix shell")
@pytest.mark.parametrize("name", RUNNABLE)
def test_blocks_run_from_top_to_bottom(
    name: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in documents.NEEDS.get(name, ()):
        pytest.importorskip(package, reason=f"{name} shows {package}, which is not installed")
    page = list(blocks(ROOT / name))
    for old, _ in REPLACED.get(name, []):
        assert any(old in block.text for block in page if block.language == "python"), old
    furnish(world, tmp_path, (ROOT / name).read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(grid, "outcomes", outcomes_here)
    names: dict[str, Any] = {}
    for block in page:
        try:
            if block.language == "python":
                run_python(block, names)
            elif block.language == "bash":
                for pipeline in commands(block):
                    run_pipeline(pipeline, monkeypatch)
        except (Exception, pytest.fail.Exception) as error:
            raise AssertionError(f"{block.place} does not run: {error}") from error


def furnish(world: Path, folder: Path, text: str) -> None:
    """What a page finds when it begins: data, and runs that it does not make itself."""
    for entry in world.iterdir():
        if entry.name != "stand-ins" and not (entry.name == "mydata" and '"mydata"' in text):
            (shutil.copytree if entry.is_dir() else shutil.copy)(entry, folder / entry.name)
    for run in ("runs/camvid", "runs/voc", "runs/voc_trainval", "user/model"):
        if not re.search(rf"--out {run}\s", text):
            shutil.copytree(world / "stand-ins" / run, folder / run)


@pytest.mark.parametrize("name", NAMES)
def test_every_block_says_what_it_is(name: str) -> None:
    for block in blocks(ROOT / name):
        first = block.text.splitlines()[0]
        assert block.language in ("python", "bash", "text") or (name, first) in PLAIN, block.place
        if block.language == "text":  # no way around being run
            assert first.split()[0] not in {*PROGRAMS, "import", "from"}, block.place
        if block.language == "bash":
            for pipeline in commands(block):
                assert pipeline[-1][0] in PROGRAMS, f"{block.place}: {pipeline[-1][0]}"


def test_every_exemption_is_used() -> None:
    lines = [
        " ".join(words)
        for path in PAGES
        for block in blocks(path)
        if block.language == "bash"
        for pipeline in commands(block)
        for words in pipeline
    ]
    inline = [text for path in PAGES for text in inline_code(path)]
    for beginning in documents.NOT_RUN:
        assert any(line.startswith(beginning) for line in [*lines, *inline]), beginning


# What running text names


def inline_code(path: Path) -> list[str]:
    text = re.sub(
        r"^ *```.*?^ *```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)


@pytest.fixture(scope="module")
def flags() -> dict[str, set[str]]:
    """Command → its flags, sub-commands' and settings included; "" → of all programs here."""

    def of(parser: argparse.ArgumentParser) -> set[str]:
        found: set[str] = set()
        for action in parser._actions:
            found |= set(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                for sub in action.choices.values():
                    found |= of(sub)
        return found

    settings = {f"--{key}" for key in known_keys()} | {f"--loss.terms.{name}" for name in LOSSES}
    (choices,) = [a.choices for a in cli.build_parser()._actions if a.choices]
    table = {command: of(parser) for command, parser in choices.items()}
    for command in ("train", "study"):
        table[command] |= settings
    scripts = "".join(
        path.read_text(encoding="utf-8")
        for path in [*ROOT.glob("benchmarks/*.py"), ROOT / "tests/kills.py", ROOT / "tests/fuzz.py"]
    )
    launchers = {"--nproc-per-node", "--nnodes", "--node-rank", "--standalone", "--logdir"}
    launchers |= {"--master-addr", "--master-port"}
    launchers |= {"--rdzv-backend", "--rdzv-conf", "--rdzv-endpoint"}
    table[""] = set().union(*table.values(), re.findall(r'"(--[\w-]+)"', scripts), launchers)
    return table


@pytest.mark.parametrize("name", NAMES)
def test_flags_and_names_in_running_text_exist(name: str, flags: dict[str, set[str]]) -> None:
    for text in inline_code(ROOT / name):
        words = text.split()
        command = ""
        if words[0] == "hemnet" and len(words) > 1:
            command = words[1]
            choices = {*cli.COMMANDS, "COMMAND"}
            assert set(command.split("|")) <= choices, f"`{text}` names no command"
            command = "" if command == "COMMAND" else command
        for word in words:
            flag = word.split("=")[0]
            if re.fullmatch(r"--[a-z][\w.-]*", flag) and not flag.startswith("--model.options."):
                assert flag in flags[command], f"`{text}`: there is no {flag}"
        for dotted in re.findall(r"(?<![\w/.-])hemnet(?:\.\w+)+", text):
            assert resolves(dotted), f"`{text}`: there is no {dotted}"
        for path in re.findall(r"(?:configs|benchmarks|tests|docs|examples)/[\w/]+\.\w+", text):
            assert (ROOT / path).exists(), f"`{text}`: there is no {path}"
        setting = re.fullmatch(r"((?:data|optim|loss|validation|run)\.[a-z_]+)(?: \S+)?", text)
        if setting and not setting[1].startswith("run.py"):
            assert setting[1] in known_keys(), f"`{text}`: there is no such setting"


def resolves(dotted: str) -> bool:
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("name", [*NAMES, "CONTRIBUTING.md"])
def test_links_and_pictures_exist(name: str) -> None:
    path = ROOT / name
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r'\]\(([^)#\s]+)|src="([^"]+)"', text):
        target = target[0] or target[1]
        if not target.startswith("http") and Path(target).name not in GENERATED:
            assert (path.parent / target).exists(), f"{name} points to {target}"


def test_the_map_names_what_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = {path for path in re.findall(r"`([\w/.]+(?:\.py|\.md|/))`", text) if "NAME" not in path}
    assert len(named) > 30
    for path in named:
        places = (ROOT / path, ROOT / "src" / "hemnet" / path)
        assert any(place.exists() for place in places), f"CONTRIBUTING.md: there is no {path}"
    for floor in (ROOT / "src" / "hemnet").iterdir():
        if (floor / "__init__.py").exists():
            assert f"`{floor.name}/`" in text, f"CONTRIBUTING.md does not mention {floor.name}/"


def test_readme_shows_both_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
    assert "pip install hemnet" not in text


# The site and the notebook


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return out


def test_the_site_builds_without_warnings_and_needs_no_network(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        text = page.read_text(encoding="utf-8")
        outside = re.findall(r'(?:src|href)="(https?://[^"]+\.(?:js|css|woff2?|png|svg))"', text)
        assert not outside, f"{page.name} fetches {outside}"
        assert not re.search(r"<p>:::|\\frac|\$\$", text), f"{page.name}: left as it was written"


def test_the_site_draws_formulas_and_documents_the_interface(site: Path) -> None:
    assert (site / "method.html").read_text(encoding="utf-8").count("<math") > 50
    import hemnet

    reference = "".join(p.read_text(encoding="utf-8") for p in (site / "api").glob("*.html"))
    for name in hemnet.__all__:
        assert name == "__version__" or re.search(rf'id="hemnet\.[\w.]*\b{name}"', reference), name


@pytest.mark.parametrize("name", [path.stem for path in (ROOT / "examples").glob("*.ipynb")])
def test_notebooks_run_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    kept = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert all(kept[1:]), "committed without its outputs"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the kernel's machinery
        client = nbclient.NotebookClient(
            notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
        )
        client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not [o for o in cell.outputs if o.get("name") == "stderr"], cell.source


@pytest.mark.parametrize(
    "module",
    [
        *("hemnet.em.solver", "hemnet.nn.attention", "hemnet.models.registry"),
        *("hemnet.data", "hemnet.data.catalog"),
    ],
)
def test_examples_in_docstrings(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted
    assert not found.failed


def test_every_module_with_an_example_is_tested() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    for path in (ROOT / "src").rglob("*.py"):
        if ">>> " in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
            name = name.removesuffix(".__init__")
            assert f'"{name}"' in source, name


def test_what_does_not_run_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["evaluate", "nowhere"], ["data", "check", "folder", "--rot", "x"]):
        with pytest.raises(AssertionError, match="ended with 2"):
            documents.run_hemnet(["hemnet", *words])
    with pytest.raises(AssertionError, match="no --speed"):
        documents.run_module(["python", "benchmarks/data.py", "--speed", "9"])
    with pytest.raises(SystemExit):
        documents.run_torchrun(["torchrun", "--proceses", "2", "-m", "hemnet", "demo"])
