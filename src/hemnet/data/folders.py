"""A user's own data: a folder of images and labels, or a list of pairs."""

from __future__ import annotations

import csv
from pathlib import Path

from hemnet.data.class_lists import ClassList, parse_classes
from hemnet.data.label_matching import Pattern, match, no_layout, no_match
from hemnet.data.labels import MAX_CLASSES, VOID
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
SPLIT_NAMES = ("train", "training", "val", "validation", "test")
SPLITS = "splits"  # the folder of lists that `hemnet data split` writes
ALL = "all"  # the split of a folder that has no splits


def folder(root: Path, split: str, labels: str | None = None) -> Layout:
    """`images/SPLIT/…` and `labels/SPLIT/…`, or `SPLIT/images/…`, or no splits at all.

    A label belongs to the image with the same path below its folder, extensions aside, or as the
    pattern `labels` says. `splits/SPLIT.txt`, a list of pairs, goes before folders.
    """
    listed = root / SPLITS / f"{split}.txt"
    if listed.is_file():
        return _named_as_images(pair_list(listed, split))
    if labels is not None:
        pattern = Pattern(labels)
        below, marks = _image_tree(root, split)
        pairs, lost = match(pattern, below, root, marks)
        return Layout(pairs, unpaired=lost)
    images, marks = _trees(root, split)
    found = _by_key(images, IMAGE_EXTENSIONS)
    marked = _by_key(marks, LABEL_EXTENSIONS)
    pairs = [Pair(key, found[key], marked[key]) for key in found if key in marked]
    if not pairs:
        raise no_match(images, marks)
    return Layout(
        pairs,
        unpaired=[f"{found[k]}: no label below {marks}" for k in found if k not in marked]
        + [f"{marked[k]}: no image below {images}" for k in marked if k not in found],
    )


def _named_as_images(layout: Layout) -> Layout:
    """Ids without the way from the list to the folder of images."""
    for number, pair in enumerate(layout.pairs):
        parts = [part for part in Path(pair.id).parts if part != ".."]
        if parts[0] in IMAGE_FOLDERS:
            del parts[0]
        layout.pairs[number] = Pair("/".join(parts), pair.image, pair.label)
    return layout


def _image_tree(root: Path, split: str) -> tuple[Path, Path | None]:
    """The images of a split and, where there is one, the folder of labels beside them."""
    splits = folder_splits(root, labels=True)
    if split not in splits:
        raise _no_split(root, split, splits)
    base = root / split if (root / split / "images").is_dir() else root
    images = next((base / n for n in IMAGE_FOLDERS if (base / n).is_dir()), base)
    labels = next((base / n for n in LABEL_FOLDERS if (base / n).is_dir()), None)
    if base == root and split != ALL:
        images = images / split
        labels = labels / split if labels and (labels / split).is_dir() else labels
    return images, labels


def _no_split(root: Path, split: str, splits: list[str]) -> UserError:
    text = f"{root}: no split {split!r}; this folder has {', '.join(splits) or 'none'}."
    if splits == [ALL]:
        text += f" To divide it: hemnet data split folder --root {root}"
    return UserError(text)


def _by_key(base: Path, extensions: tuple[str, ...]) -> dict[str, Path]:
    """Files by their path below `base` without extension."""
    found: dict[str, Path] = {}
    for path in files_under(base, extensions):
        key = path.relative_to(base).with_suffix("").as_posix()
        if key in found:
            raise UserError(f"{path}: a second file beside {found[key].name}. Remove one of them.")
        found[key] = path
    return found


def folder_splits(root: Path, labels: bool = False) -> list[str]:
    """The splits a folder has, train first. `labels`: images may lie in the folder itself."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder. Give the folder of the data with --root.")
    listed = [path.stem for path in (root / SPLITS).glob("*.txt") if path.name[0] != "."]
    named: list[str] = []
    base = next((root / n for n in IMAGE_FOLDERS if (root / n).is_dir()), None)
    if base is None and labels and not any(root.glob("*/images")):
        base = root
    if base is not None:
        named = sorted(p.name for p in base.iterdir() if p.is_dir() and p.name in SPLIT_NAMES)
        named = named or ([] if listed else [ALL])
    else:
        named = sorted(p.parent.name for p in root.glob("*/images") if p.is_dir())
    if "train" in listed:  # made from them
        named = [name for name in named if name in ("test", "testing")]
    return sorted({*listed, *named}, key=lambda s: (not s.startswith("train"), s))


def _trees(root: Path, split: str) -> tuple[Path, Path]:
    base = root / split if (root / split / "images").is_dir() else root
    images = next((base / n for n in IMAGE_FOLDERS if (base / n).is_dir()), None)
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
            "elsewhere: --data.labels FOLDER, or a pattern such as '{stem}_mask.png'."
        )
    if len(choices) > 1:
        names = " and ".join(f"{p.name}/" for p in choices)
        raise UserError(
            f"{base}: {len(choices)} folders of labels, {names}. Choose one: --data.labels "
            f"{choices[0].name}."
        )
    labels = choices[0]
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
    root: Path, classes: str | list[str] | None, labels: str | None = None
) -> ClassList:
    """Class names and colours from what the user gave, or from `classes.txt` beside the data."""
    if isinstance(classes, list):
        return parse_classes("\n".join(classes))
    beside = (root if root.is_dir() else root.parent) / "classes.txt"
    if classes is None:
        if not beside.is_file():
            pattern = f" --data.labels '{labels}'" if labels else ""
            raise UserError(
                f"{beside}: no such file, and no classes were given. Write one class name per line "
                "(a colour may follow: `road #804080`), give --classes, or let "
                f"`hemnet data prepare folder --root {root}{pattern}` find them."
            )
        return _checked(parse_classes("\n".join(read_lines(beside))), str(beside))
    if classes.isdecimal() and classes.isascii():
        if len(classes) > 3:
            raise UserError(f"classes: a number of {len(classes)} digits; at most {MAX_CLASSES}.")
        return _checked(ClassList(tuple(f"class {i}" for i in range(int(classes)))), classes)
    if "," in classes:
        return _checked(parse_classes(classes.replace(",", "\n")), classes)
    if _is_file(classes):
        return _checked(parse_classes("\n".join(read_lines(Path(classes)))), classes)
    raise UserError(
        f"classes {classes[:100]!r}: expected a file with a name per line, names separated by "
        "commas, or their number."
    )


def _checked(found: ClassList, source: str) -> ClassList:
    names, colours, void = found
    if not 1 <= len(names) <= MAX_CLASSES:
        raise UserError(f"{source}: {len(names)} classes; expected 1 to {MAX_CLASSES}.")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UserError(f"{source}: class names must differ; repeated: {', '.join(repeated)}.")
    if len({*colours, *void}) < len(colours) + len(void):
        raise UserError(f"{source}: two classes have the same colour.")
    return found


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
