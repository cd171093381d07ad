"""What is needed for publishing and for running elsewhere is there and agrees with the project."""

import re
import tomllib

from support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_what_the_image_copies_and_installs_exists() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    known = {"FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in steps} <= known
    assert steps[0][0] == "FROM"
    for name, rest in steps:
        if name == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
    (install,) = (rest for name, rest in steps if "pip install" in rest)
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', install)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    version = re.search(r"python:(\d+)\.(\d+)", steps[0][1])
    assert version is not None
    assert (int(version[1]), int(version[2])) >= (3, 11)
    order = [name for name, _ in steps]
    assert order.index("USER") < order.index("ENTRYPOINT"), "not as root"


def test_every_extra_is_pinned_where_it_is_tested() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    pinned = {line.split("==")[0] for line in text.splitlines() if "==" in line}
    wanted = list(PROJECT["dependencies"])
    for extra in PROJECT["optional-dependencies"].values():
        wanted += extra
    names = {re.split(r"[\[><=]", entry.lower())[0].replace("_", "-") for entry in wanted}
    assert names - {"hemnet-torch"} <= pinned


def test_ci_builds_and_checks_the_package() -> None:
    assert "make package" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-m build" in makefile
    assert "twine check --strict" in makefile
