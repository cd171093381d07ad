"""A user's own data: a folder of images and labels, or a list of pairs."""

from __future__ import annotations

import csv
from pathlib import Path

from hemnet.data.classes import parse_classes
from hemnet.data.labels import MAX_CLASSES, VOID, Colour
from hemnet.data.layouts import (
    IMAGE_EXTENSIONS,
    LABEL_EXTENSIONS,
    Layout,
    Pair,
    files_under,
    read_lines,
)
from hemnet.errors import UserError

IMAGE_FOLDERS = ("images", "image", "imgs", "JPEGImages")
LABEL_FOLDERS = ("labels", "label", "masks", "annotations")
LISTS = (".txt", ".csv", ".tsv")
ALL = "all"  # the split of a folder that has no splits


def folder(root: Path, split: str) -> Layout:
    """`images/SPLIT/…` and `labels/SPLIT/…`, or `SPLIT/images/…`, or no splits at all.

    A label belongs to the image with the same path below its folder, extensions aside.
    """
    images, labels = _trees(root, split)
    found = _by_key(images, IMAGE_EXTENSIONS)
    marked = _by_key(labels, LABEL_EXTENSIONS)
    return Layout(
        [Pair(key, found[key], marked[key]) for key in found if key in marked],
        unpaired=[f"{found[k]}: no label below {labels}" for k in found if k not in marked]
        + [f"{marked[k]}: no image below {images}" for k in marked if k not in found],
    )


def _by_key(base: Path, extensions: tuple[str, ...]) -> dict[str, Path]:
    """Files by their path below `base` without extension."""
    found: dict[str, Path] = {}
    for path in files_under(base, extensions):
        key = path.relative_to(base).with_suffix("").as_posix()
        if key in found:
            raise UserError(f"{path}: a second file beside {found[key].name}. Remove one of them.")
        found[key] = path
    return found


def folder_splits(root: Path) -> list[str]:
    """The splits a folder has, train first."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder. Give the folder of the data with --root.")
    for name in IMAGE_FOLDERS:
        if (root / name).is_dir():
            inside = sorted(p.name for p in (root / name).iterdir() if p.is_dir())
            named = [s for s in inside if s in ("train", "training", "val", "validation", "test")]
            return sorted(named, key=lambda s: not s.startswith("train")) or [ALL]
    inside = sorted(p.parent.name for p in root.glob("*/images") if p.is_dir())
    return sorted(inside, key=lambda s: not s.startswith("train"))


def _trees(root: Path, split: str) -> tuple[Path, Path]:
    base = root / split if (root / split / "images").is_dir() else root
    images = next((base / n for n in IMAGE_FOLDERS if (base / n).is_dir()), None)
    labels = next((base / n for n in LABEL_FOLDERS if (base / n).is_dir()), None)
    splits = folder_splits(root)
    if not splits:
        raise UserError(
            f"{root}: no images/ folder. Expected images/ and labels/ (or masks/, annotations/) "
            "here, or in a folder per split."
        )
    inside = base == root and split != ALL  # images/SPLIT
    if images is None or (inside and not (images / split).is_dir()):
        raise UserError(f"{root}: no split {split!r}; this folder has {', '.join(splits)}.")
    if labels is None:
        raise UserError(f"{base}: no labels beside the images; expected {base / 'labels'}.")
    if inside and not (labels / split).is_dir():
        raise UserError(f"{labels / split}: no such folder, though {images / split} exists.")
    return (images / split, labels / split) if inside else (images, labels)


def pair_list(root: Path, split: str) -> Layout:
    """A text or CSV file of `image label` lines; paths are relative to the file.

    `root` is the file itself, or a folder with SPLIT.txt, SPLIT.csv or SPLIT.tsv.
    """
    choices = [root / f"{split}{end}" for end in LISTS]
    path = root if root.is_file() else next((p for p in choices if p.is_file()), None)
    if path is None:
        raise UserError(
            f"{root}: no list of pairs. Give the file itself as --root, or a folder with "
            f"{', '.join(p.name for p in choices)}."
        )
    pairs = []
    for number, row in _rows(path):
        if len(row) < 2 or not all(row[:2]):
            raise UserError(
                f"{path}, line {number}: expected an image and a label, separated by a comma, a "
                f"tab or a space; found {' '.join(row)!r}."
            )
        image, label = (path.parent / cell for cell in row[:2])
        name = Path(row[0])
        if not name.name:
            raise UserError(f"{path}, line {number}: {row[0]!r} is no image file.")
        pairs.append(Pair(name.with_suffix("").as_posix(), image, label))
    return Layout(pairs, fix=f"Correct the paths in {path}.")


def list_splits(root: Path) -> list[str]:
    """The lists in a folder by name; that of a file alone."""
    if not root.is_dir():
        return [root.stem]
    found = [p for p in root.iterdir() if p.suffix in LISTS and p.name != "classes.txt"]
    if not found:
        raise UserError(f"{root}: no list of pairs here, such as train.txt or val.csv.")
    return sorted(path.stem for path in found)


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    lines = read_lines(path)
    text = [line for line in lines if line.strip() and not line.startswith("#")]
    comma, tab = (bool(text) and all(mark in line for line in text) for mark in (",", "\t"))
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            cells = line.split("\t") if tab else next(csv.reader([line])) if comma else line.split()
        except csv.Error as error:
            raise UserError(f"{path}, line {number}: {error}.") from None
        rows.append((number, [cell.strip() for cell in cells]))
    header = rows and Path(rows[0][1][0]).suffix.lower() not in IMAGE_EXTENSIONS
    return rows[1:] if header and rows[0][1][0].lower() in ("image", "images", "img") else rows


def find_classes(
    root: Path, classes: str | list[str] | None
) -> tuple[tuple[str, ...], tuple[Colour, ...]]:
    """Class names and colours from what the user gave, or from `classes.txt` beside the data."""
    if isinstance(classes, list):
        return parse_classes("\n".join(classes))
    beside = (root if root.is_dir() else root.parent) / "classes.txt"
    if classes is None:
        if not beside.is_file():
            raise UserError(
                f"{beside}: no such file, and no classes were given. Write one class name per line "
                "(a colour may follow: `road #804080`), give --classes, or let "
                f"`hemnet data prepare folder --root {root}` find them."
            )
        return _checked(parse_classes("\n".join(read_lines(beside))), str(beside))
    if classes.isdecimal() and classes.isascii():
        if len(classes) > 3:
            raise UserError(f"classes: a number of {len(classes)} digits; at most {MAX_CLASSES}.")
        return _checked((tuple(f"class {i}" for i in range(int(classes))), ()), classes)
    if "," in classes:
        return _checked(parse_classes(classes.replace(",", "\n")), classes)
    if _is_file(classes):
        return _checked(parse_classes("\n".join(read_lines(Path(classes)))), classes)
    raise UserError(
        f"classes {classes[:100]!r}: expected a file with a name per line, names separated by "
        "commas, or their number."
    )


def _checked(
    found: tuple[tuple[str, ...], tuple[Colour, ...]], source: str
) -> tuple[tuple[str, ...], tuple[Colour, ...]]:
    names, colours = found
    if not 1 <= len(names) <= MAX_CLASSES:
        raise UserError(f"{source}: {len(names)} classes; expected 1 to {MAX_CLASSES}.")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UserError(f"{source}: class names must differ; repeated: {', '.join(repeated)}.")
    if len(set(colours)) < len(colours):
        raise UserError(f"{source}: two classes have the same colour.")
    return names, colours


def parse_label_map(text: str) -> dict[int, int]:
    """`0:255,1:0,2:1`, or a file with one `value: class` per line; `void` is 255."""
    lines = read_lines(Path(text)) if _is_file(text) else text.replace(",", "\n").splitlines()
    mapping: dict[int, int] = {}
    for line in filter(None, (line.strip() for line in lines)):
        value, colon, target = (part.strip() for part in line.partition(":"))
        if not (colon and _is_value(value) and (_is_value(target) or target == "void")):
            raise UserError(
                f"label map {line[:100]!r}: expected VALUE:CLASS, such as 0:255,1:0 "
                "(or a file of lines)."
            )
        mapping[int(value)] = VOID if target == "void" else int(target)
    return mapping


def _is_value(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return False
