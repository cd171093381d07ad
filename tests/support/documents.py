"""The documents as programs: their blocks, and how each is run.

Python blocks run as they are and share a page's names. Commands run in this process, in a folder
with stand-ins for what the pages name (`documents_world`). Long settings are overruled by short
ones: flags that the command line takes, appended. What is not run at all is listed in
`NOT_RUN`, with its reason and with what is checked instead.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hemnet import cli
from support import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# A network and a schedule of seconds. The rest of a configuration is as the page says.
SMALL = {
    "model.backbone": "test_resnet",
    "model.weights": "null",
    "model.output_stride": "16",
    "model.channels": "16",
    "data.crop": "[49, 49]",  # whole steps of loss.stride
    "data.workers": "0",
    "data.skip_missing": "true",  # the stand-ins have few of the official files
    "optim.steps": "2",
    "optim.batch_size": "4",
    "optim.warmup": "0",
    "validation.every": "2",
    "run.tensorboard": "false",
}
SMALL_EM = {"model.options.bases": "8"}  # an export repeats for each what finds the first ones
SMALL_SCENES = {"data.size": "48", "data.length": "8", "data.val_length": "6"}
SHORTER: dict[str, list[str]] = {
    "demo": ["--steps", "1"],
    "evaluate": ["--workers", "0"],
    "study ablation": [
        *("--iterations", "3", "--step-sizes", "0.8", "--seeds", "0", "--baselines", "emanet")
    ],
    "study iterations": ["--iterations", "1", "3"],
    "study gradients": ["--iterations", "3", "--step-sizes", "0.5", "--samples", "4"],
    "study attention": ["--index", "1"],
    "study compare": ["--heads", "hemnet", "fcn", "--seeds", "0"],
}

# Beginning of a command → why it is not run. Its flags are checked all the same.
NOT_RUN = {
    "make": "makes an environment; its targets are compared with the Makefile, and CI runs them",
    "pip install": "makes an environment; the extras are compared with pyproject.toml",
    "hemnet data prepare": "wants archives of gigabytes; test_data_prepare.py converts small ones",
    "hemnet costs --model": "seconds of counting; test_costs.py does it with small networks",
    "hemnet costs --paper": "seconds of counting; test_costs.py compares every figure of it",
    "hemnet convert": "wants published weights of 200 MB; test_convert.py converts random ones",
    "hemnet app": "a server; its own tests start one",
    "python benchmarks/": "minutes to hours; each flag must be one that the script knows",
    "python tests/kills.py": "minutes of kills; test_train.py does some of them",
    "python tests/fuzz.py": "an hour of hostile inputs; test_fuzz.py does some of them",
}

FEW_STEPS = (
    '"optim.steps": 100',
    '"optim.steps": 2, "optim.warmup": 0, "data.val_length": 4, "data.workers": 0',
)
# Page → texts of its Python blocks that are replaced, each of which must be there.
REPLACED = {
    **{page: [FEW_STEPS] for page in ("README.md", "docs/training.md", "docs/api/python.md")},
    "docs/block.md": [
        ("range(40)", "range(3)"),
        ("fullgraph=True)  #", 'fullgraph=True, backend="eager")  #'),  # no compiler is needed
    ],
}


# Page → packages that only it needs; where one is not installed, the page is not run.
NEEDS = {"docs/elsewhere.md": ("segmentation_models_pytorch", "transformers")}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(path: Path) -> Iterator[Block]:
    """The fenced blocks of a page. One without a language is bash if it begins like a command."""
    page, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for found in re.finditer(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE):
        indent, language, content = found.groups()
        content = re.sub(rf"^{indent}", "", content, flags=re.MULTILINE)
        if not language:
            language = "bash" if content.split(None, 1)[0] in {*PROGRAMS, "find", "sed"} else ""
        yield Block(page, text.count("\n", 0, found.start()) + 1, language, content)


def commands(block: Block) -> Iterator[list[list[str]]]:
    """The pipelines of a block: a list of commands, each a list of words."""
    joined = re.sub(r"\\\n\s*|(?<=\|)\n\s*", " ", block.text)
    for line in joined.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|")
        lexer.whitespace_split, lexer.commenters = True, "#"
        pipeline: list[list[str]] = [[]]
        for word in lexer:
            if word == "|":
                pipeline.append([])
            else:
                pipeline[-1].append(word)
        if pipeline != [[]]:
            yield pipeline


def run_python(block: Block, names: dict[str, Any]) -> None:
    text = block.text
    for old, new in REPLACED.get(block.page, []):
        text = text.replace(old, new)
    exec(compile("\n" * block.line + text, block.page, "exec"), names)


def run_pipeline(pipeline: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    *feeding, last = pipeline
    for words in feeding:
        text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    PROGRAMS[last[0]](last)


def run_hemnet(words: list[str]) -> None:
    arguments = [*words[1:], *shorter(words[1:])]
    if any(shlex.join(words).startswith(beginning) for beginning in NOT_RUN):
        cli.build_parser().parse_args(arguments)
        return
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 0, f"{shlex.join(words)} ended with {end.value.code}"


def shorter(arguments: list[str]) -> list[str]:
    """Flags that make a command short."""
    command = next((c for c in SHORTER if shlex.join(arguments).startswith(c)), "")
    flags = list(SHORTER.get(command, []))
    measures = len(arguments) > 2 and not arguments[2].startswith("-")  # a model as it is
    study = command in ("study ablation", "study gradients", "study compare") and not measures
    if not (study or arguments[0] == "train") or "--resume" in arguments:
        return flags
    given: dict[str, Any] = {"data": {"name": "scenes"}, "model": {"name": "hemnet"}}
    if "--config" in arguments:
        file = Path(arguments[arguments.index("--config") + 1])
        given |= yaml.safe_load(file.read_text(encoding="utf-8"))
    data, model = (
        arguments[arguments.index(f"--{part}.name") + 1]
        if f"--{part}.name" in arguments
        else given[part]["name"]
        for part in ("data", "model")
    )
    settings = SMALL | (SMALL_SCENES if data == "scenes" else {})
    settings |= SMALL_EM if model in ("hemnet", "emanet") and not study else {}
    if study:  # which has short names for two, and they come last
        flags += ["--backbone", settings["model.backbone"], "--weights", "null"]
    return flags + [part for key, value in settings.items() for part in (f"--{key}", value)]


def run_torchrun(words: list[str]) -> None:
    """As one process; `--standalone` for real, with as many as it says."""
    from torch.distributed.run import get_args_parser

    args = get_args_parser().parse_args(words[1:])
    assert args.module
    inner = [args.training_script, *args.training_script_args]
    if not args.standalone:
        if args.node_rank == 0:  # the others do the same
            run_hemnet(inner)
        return
    command = [sys.executable, "-m", "torch.distributed.run", *words[1:], *shorter(inner[1:])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr


def run_accelerate(words: list[str]) -> None:
    from accelerate.commands.launch import launch_command_parser

    assert words[1] == "launch"
    args = launch_command_parser().parse_args(words[2:])
    assert args.module
    run_hemnet([args.training_script, *args.training_script_args])


def run_module(words: list[str]) -> None:
    """`python -m hemnet.…` in this process; of a script, only its flags are looked at."""
    if words[1] == "-m":
        import runpy

        before, sys.argv = sys.argv, words[2:]
        try:
            runpy.run_module(words[2], run_name="__main__", alter_sys=False)
        finally:
            sys.argv = before
        return
    assert any(shlex.join(words).startswith(beginning) for beginning in NOT_RUN), words
    source = (ROOT / words[1]).read_text(encoding="utf-8")
    for word in words[2:]:
        assert not word.startswith("--") or f'"{word}"' in source, f"{words[1]} has no {word}"


def check_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert len(words) == 2
    assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), f"no target {words[1]}"


def check_pip(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for word in words[2:]:
        found = re.fullmatch(r"(?:\.|hemnet-torch)(?:\[([\w,]+)\])?", word)
        assert found, f"what is {word}?"
        for extra in (found[1] or "").split(","):
            assert not extra or extra in project["optional-dependencies"], word


def check_runner(words: list[str]) -> None:
    """`uvx --from . hemnet …`, `pipx run --spec . hemnet …`, `docker run … hemnet …`."""
    if words[:2] == ["docker", "build"]:
        assert (ROOT / "Dockerfile").is_file()
        assert words[-1] == "."
        return
    if words[0] != "docker":
        assert words[words.index("hemnet") - 1] == ".", "from the checkout"
    inner = words[len(words) - words[::-1].index("hemnet") :]
    cli.build_parser().parse_args(inner)


PROGRAMS: Any = {
    "hemnet": run_hemnet,
    "torchrun": run_torchrun,
    "accelerate": run_accelerate,
    "python": run_module,
    "make": check_make,
    "pip": check_pip,
    "uvx": check_runner,
    "pipx": check_runner,
    "docker": check_runner,
}
