"""A user's own data: a folder of images and labels, or a list of pairs."""

from __future__ import annotations

import csv
from pathlib import Path

from hemnet.data.dataset import Pair
from hemnet.data.entry import SplitFiles
from hemnet.data.label_matching import Pattern, match, no_layout, no_match
from hemnet.data.listing import IMAGE_EXTENSIONS, LABEL_EXTENSIONS, files_under, read_lines
from hemnet.errors import UserError

IMAGE_FOLDERS = ("images", "image", "imgs", "JPEGImages")
LABEL_FOLDERS = ("labels", "label", "masks", "annotations")
LISTS = (".txt", ".csv", ".tsv")
SPLIT_NAMES = ("train", "training", "val", "validation", "test")
SPLITS = "splits"  # the folder of lists that `hemnet data split` writes
ALL = "all"  # the split of a folder that has no splits


def find_pairs(root: Path, split: str, labels: str | None = None) -> SplitFiles:
    """`images/SPLIT/…` and `labels/SPLIT/…`, or `SPLIT/images/…`, or no splits at all.

    A label belongs to the image with the same path below its folder, extensions aside, or to the
    one that the pattern `labels` says. `splits/SPLIT.txt`, a list of pairs, takes precedence.
    """
    listed = root / SPLITS / f"{split}.txt"
    if listed.is_file():
        return _named_as_images(read_pairs(listed, split))
    if labels is not None:
        pairs, lost = match(Pattern(labels), root, *_pattern_folders(root, split))
        return SplitFiles(pairs, unpaired=lost)
    images, marks = _folders(root, split)
    found = _by_key(images, IMAGE_EXTENSIONS)
    marked = _by_key(marks, LABEL_EXTENSIONS)
    pairs = [Pair(key, found[key], marked[key]) for key in found if key in marked]
    if not pairs:
        raise no_match(images, marks)
    return SplitFiles(
        pairs,
        unpaired=[f"{found[k]}: no label below {marks}" for k in found if k not in marked]
        + [f"{marked[k]}: no image below {images}" for k in marked if k not in found],
    )


def _named_as_images(files: SplitFiles) -> SplitFiles:
    """Ids without the path from the list to the folder of images."""
    for number, pair in enumerate(files.pairs):
        parts = [part for part in Path(pair.id).parts if part != ".."]
        if parts[0] in IMAGE_FOLDERS:
            del parts[0]
        files.pairs[number] = Pair("/".join(parts), pair.image, pair.label)
    return files


def _by_key(base: Path, extensions: tuple[str, ...]) -> dict[str, Path]:
    """Files by their path below `base` without extension."""
    found: dict[str, Path] = {}
    for path in files_under(base, extensions):
        key = path.relative_to(base).with_suffix("").as_posix()
        if key in found:
            raise UserError(f"{path}: a second file beside {found[key].name}. Remove one of them.")
        found[key] = path
    return found


def folder_splits(root: Path, beside: bool = False) -> list[str]:
    """The splits a folder has, train first. `beside`: images may lie in the folder itself."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder. Give the folder of the data as `root`.")
    listed = [path.stem for path in (root / SPLITS).glob("*.txt") if path.name[0] != "."]
    named: list[str] = []
    base = _first_of(root, IMAGE_FOLDERS)
    if base is None and beside and not any(root.glob("*/images")):
        base = root
    if base is not None:
        named = sorted(p.name for p in base.iterdir() if p.is_dir() and p.name in SPLIT_NAMES)
        named = named or ([] if listed else [ALL])
    else:
        named = sorted(p.parent.name for p in root.glob("*/images") if p.is_dir())
    if "train" in listed:  # made from them
        named = [name for name in named if name in ("test", "testing")]
    return sorted({*listed, *named}, key=lambda s: (not s.startswith("train"), s))


def _first_of(base: Path, names: tuple[str, ...]) -> Path | None:
    return next((base / name for name in names if (base / name).is_dir()), None)


def _split_base(root: Path, split: str) -> Path:
    return root / split if (root / split / "images").is_dir() else root


def _pattern_folders(root: Path, split: str) -> tuple[Path, Path | None]:
    """The images of a split and, where there is one, the folder of labels beside them."""
    splits = folder_splits(root, beside=True)
    if split not in splits:
        raise _no_split(root, split, splits)
    base = _split_base(root, split)
    images, labels = _first_of(base, IMAGE_FOLDERS) or base, _first_of(base, LABEL_FOLDERS)
    if base == root and split != ALL:
        images = images / split
        labels = labels / split if labels and (labels / split).is_dir() else labels
    return images, labels


def _folders(root: Path, split: str) -> tuple[Path, Path]:
    """The folders of a split's images and labels, which have the same names."""
    base = _split_base(root, split)
    images = _first_of(base, IMAGE_FOLDERS)
    choices = [base / n for n in LABEL_FOLDERS if (base / n).is_dir()]
    if len(choices) > 1:  # one of them may hold something else
        choices = [p for p in choices if files_under(p, LABEL_EXTENSIONS)] or choices
    splits = folder_splits(root)
    if not splits:
        raise no_layout(root)
    inside = base == root and split != ALL  # images/SPLIT
    if images is None or (inside and not (images / split).is_dir()):
        raise _no_split(root, split, splits)
    if not choices:
        raise UserError(
            f"{base}: no labels beside the images; expected {base / 'labels'}. If they lie "
            "elsewhere, say so: `labels=FOLDER`, or a pattern such as `labels='{stem}_mask.png'`."
        )
    if len(choices) > 1:
        names = " and ".join(f"{p.name}/" for p in choices)
        raise UserError(
            f"{base}: {len(choices)} folders of labels, {names}. Choose one: "
            f"`labels={choices[0].name}`."
        )
    labels = choices[0]
    if inside and not (labels / split).is_dir():
        raise UserError(f"{labels / split}: no such folder, though {images / split} exists.")
    return (images / split, labels / split) if inside else (images, labels)


def _no_split(root: Path, split: str, splits: list[str]) -> UserError:
    text = f"{root}: no split {split!r}; this folder has {', '.join(splits) or 'none'}."
    if splits == [ALL]:
        text += f" To divide it: hemnet data split folder --root {root}"
    return UserError(text)


def read_pairs(root: Path, split: str) -> SplitFiles:
    """A text or CSV file of `image label` lines; paths are relative to the file.

    `root` is the file itself, or a folder with SPLIT.txt, SPLIT.csv or SPLIT.tsv.
    """
    choices = [root / f"{split}{end}" for end in LISTS]
    path = root if root.is_file() else next((p for p in choices if p.is_file()), None)
    if path is None:
        raise UserError(
            f"{root}: no list of pairs. Give the file itself as `root`, or a folder with "
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
            raise UserError(f"{path}, line {number}: {row[0]!r} is not an image file.")
        pairs.append(Pair(name.with_suffix("").as_posix(), image, label))
    return SplitFiles(pairs, fix=f"Correct the paths in {path}.")


def list_splits(root: Path) -> list[str]:
    """The lists in a folder by name; that of a file alone."""
    if not root.is_dir():
        return [root.stem]
    found = [p for p in root.iterdir() if p.suffix in LISTS and p.name != "classes.txt"]
    if not found:
        raise UserError(f"{root}: no list of pairs here, such as train.txt or val.csv.")
    return sorted(path.stem for path in found)


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    lines = [
        (number, line)
        for number, line in enumerate(read_lines(path), 1)
        if line.strip() and not line.startswith("#")
    ]
    comma, tab = (bool(lines) and all(mark in line for _, line in lines) for mark in (",", "\t"))
    rows = []
    for number, line in lines:
        try:
            cells = line.split("\t") if tab else next(csv.reader([line])) if comma else line.split()
        except csv.Error as error:
            raise UserError(f"{path}, line {number}: {error}.") from None
        rows.append((number, [cell.strip() for cell in cells]))
    header = rows and Path(rows[0][1][0]).suffix.lower() not in IMAGE_EXTENSIONS
    return rows[1:] if header and rows[0][1][0].lower() in ("image", "images", "img") else rows
