"""Models that come with the package, and suggestions for names that are not found.

Each is a folder `bundled_models/NAME` beside this file, which `save_pretrained` wrote, with a
model card.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

BUNDLED = Path(__file__).with_name("bundled_models")
CARD = "README.md"
_FILES = (".onnx", ".pt2", ".xml", ".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".yaml", ".json")


def list_pretrained() -> list[str]:
    """Names of the trained models that come with the package, which `from_pretrained` takes."""
    return sorted(card.parent.name for card in BUNDLED.glob(f"*/{CARD}"))


def bundled_folder(source: str | Path) -> Path | None:
    """The folder of a model that comes with the package."""
    return BUNDLED / str(source) if str(source) in list_pretrained() else None


def is_hub_id(source: str) -> bool:
    """Whether a name can be a hub id, such as user/model, rather than a local path."""
    parts = source.split("/")
    return (
        len(parts) == 2
        and all(re.fullmatch(r"\w[\w.-]*", part) for part in parts)
        and not source.lower().endswith(_FILES)
        and not Path(parts[0]).is_dir()
        and parts[0] not in ("runs", "models")
    )


def not_found(source: str) -> str:
    """The message for a name that is neither a local model nor a hub id, with suggestions."""
    path, names = Path(source), list_pretrained()
    if path.is_file():
        return f"{source} is a file: expected a folder that save_pretrained wrote"
    if not re.fullmatch(r"[\w.-]+", source) or source.startswith(".") or path.suffix in _FILES:
        kind = "file" if path.suffix.lower() in _FILES else "folder"
        return f"there is no {kind} {source}{_around(path)}"
    meant = _meant(source, [*names, *_beside(path)], Path())
    return (
        f"{source!r} is neither a folder nor a model that comes with hemnet "
        f"({', '.join(names)}){meant}. Models of the hub are called user/model"
    )


def _around(path: Path) -> str:
    """Describe the folder that a missing path is in."""
    above = path.expanduser().parent
    if not above.is_dir():
        return f", nor {path.parent} (looked from {Path.cwd()})"
    names = sorted(_beside(path))
    meant = _meant(path.name, names, path.parent)
    if meant or not names:
        return meant
    return f"; {path.parent} has {', '.join(names[:6])}{', …' if len(names) > 6 else ''}"


def _beside(path: Path) -> list[str]:
    try:
        return [each.name for each in path.expanduser().parent.iterdir() if each.name[:1] != "."]
    except OSError:
        return []


def _meant(name: str, known: list[str], folder: Path) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {(folder / close[0]).as_posix()}?" if close else ""
