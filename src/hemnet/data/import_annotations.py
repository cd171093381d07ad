"""Convert annotations of labelling tools to our folder layout: images/, labels/, classes.txt."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hemnet.data.annotation_formats import (
    BACKGROUND,
    IGNORED,
    READERS,
    AnnotatedImage,
    Annotations,
    upright,
)
from hemnet.data.class_lists import find_classes
from hemnet.data.label_conversion import write_png
from hemnet.data.labels import MAX_CLASSES, VOID
from hemnet.errors import DataError, UserError
from hemnet.progress import track

SHOWN = 5  # names of a kind that are listed


@dataclass(frozen=True)
class ClassIds:
    """Class id of each name in the annotations, and the classes to write."""

    ids: dict[str, int]
    classes: list[str]
    notes: list[str]


def convert_annotations(
    name: str,
    root: Path,
    source: Path | None = None,
    out: Path | None = None,
    classes: str | None = None,
) -> str:
    """Convert LabelMe's, COCO's or CVAT's annotations; returns a report.

    Args:
        name: "labelme", "coco-json" or "cvat".
        root: the folder of the images.
        source: of the annotations, a folder or a file; None: the root.
        out: the new folder; None: beside the root, with -prepared in its name.
        classes: in their order, as `find_classes` takes them; None: those of the annotations.
    """
    if name not in READERS:
        raise UserError(f"annotations {name!r}: expected one of {', '.join(READERS)}.")
    for place in (root, source):
        if place is not None and not place.exists():
            raise UserError(f"{place}: no such file or folder.")
    out = out or root.resolve().with_name(f"{root.resolve().name}-prepared")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already. Remove it, or give another folder as `out`.")
    annotations = READERS[name](root, source or root)
    mapping = _class_ids(
        annotations, None if classes is None else list(find_classes(root, classes).names)
    )
    if not annotations.items:
        raise UserError("\n  ".join([f"{root}: no annotated image was found.", *annotations.notes]))
    scratch = out.with_name(f".{out.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        notes = _write(annotations, mapping, scratch)
        text = "\n".join(mapping.classes) + "\n"
        (scratch / "classes.txt").write_text(text, encoding="utf-8")
        if out.exists():
            out.rmdir()
        os.replace(scratch, out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    remarks = [f"note: {text}" for text in (*annotations.notes, *mapping.notes, *notes)]
    return "\n".join([*_report(annotations, mapping, out), *remarks])


def _class_ids(annotations: Annotations, wanted: list[str] | None) -> ClassIds:
    notes: list[str] = []
    void = [name for name in annotations.classes if name.casefold() in IGNORED]
    ground = [name for name in annotations.classes if name.casefold() in BACKGROUND]
    found = [name for name in annotations.classes if name not in (*void, *ground)]
    if wanted is None:
        classes = [ground[0].strip("_") if ground else "background", *found]
    else:
        classes = wanted
        unknown = [name for name in found if name not in wanted]
        count = Counter(s.name for item in annotations.items for s in item.shapes)
        notes += [
            f"{name!r} is not among the given classes: {count[name]} shapes are left out."
            for name in unknown
        ]
        first = wanted[0]
        if first.casefold() not in BACKGROUND:
            notes.append(f"pixels without a shape are {first!r}, the first of the given classes.")
    similar: dict[str, list[str]] = {}
    for name in found:
        similar.setdefault("".join(name.casefold().split()), []).append(name)
    notes += [
        f"{' and '.join(map(repr, names))} are different classes: is one a typing error?"
        for names in similar.values()
        if len(names) > 1
    ]
    if len(classes) > MAX_CLASSES:
        raise UserError(f"{len(classes)} classes; at most {MAX_CLASSES} fit into 8-bit labels.")
    ids = {name: classes.index(name) for name in found if name in classes}
    ids |= dict.fromkeys(void, VOID) | dict.fromkeys(ground, 0)
    return ClassIds(ids, classes, notes)


def _write(annotations: Annotations, mapping: ClassIds, out: Path) -> list[str]:
    """Write images and labels; returns notes on what is odd about them."""
    names = Counter(_key(item) for item in annotations.items)
    twice = next((key for key, count in names.items() if count > 1), None)
    if twice is not None:
        raise UserError(f"two annotated images are called {twice}: rename one of them.")
    kinds = {item.split is not None for item in annotations.items}
    if len(kinds) > 1:
        raise UserError("some images belong to a split and some to none: name one for each.")
    odd: dict[str, list[str]] = {"overlap": [], "empty": [], "outside": [], "turned": []}
    contested = 0
    for item in track(annotations.items, "converting", len(annotations.items)):
        turned, size = upright(item)
        if item.size is not None and item.size != size:
            raise DataError(
                f"{item.image}: {size[1]}×{size[0]} pixels, but it was annotated with "
                f"{item.size[1]}×{item.size[0]}. Restore the image that was annotated."
            )
        drawn = item.rasterise(mapping.ids, *size, annotations.colours)
        if drawn.labels.shape != size:
            raise DataError(f"{item.coloured}: its size is not that of {item.image}.")
        contested += drawn.contested
        for kind, found in (
            ("overlap", drawn.contested),
            ("outside", drawn.empty),
            ("empty", not (item.shapes or item.coloured)),
            ("turned", turned is not None),
        ):
            if found:
                odd[kind].append(_key(item))
        image = out / "images" / f"{_key(item)}{item.image.suffix.lower()}"
        label = out / "labels" / f"{_key(item)}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        label.parent.mkdir(parents=True, exist_ok=True)
        write_png(label, drawn.labels)
        if turned is not None:
            turned.save(image, quality=95)
        elif item.pixels is not None:
            image.write_bytes(item.pixels)
        else:
            shutil.copyfile(item.image, image)
    texts = {
        "overlap": f"in {{}} images shapes of different classes overlap ({contested} pixels): the "
        "smaller shape counts",
        "outside": "in {} images a shape has no pixel inside the image",
        "empty": "{} images have no shape: all of them is background",
        "turned": "{} images were turned upright, as their EXIF tag says",
    }
    return [
        f"{texts[kind].format(len(keys))} ({', '.join(keys[:SHOWN])}"
        f"{', …' if len(keys) > SHOWN else ''})."
        for kind, keys in odd.items()
        if keys
    ]


def _key(item: AnnotatedImage) -> str:
    return item.key if item.split is None else f"{item.split}/{item.key}"


def _report(annotations: Annotations, mapping: ClassIds, out: Path) -> list[str]:
    splits = Counter(item.split for item in annotations.items if item.split)
    parts = ", ".join(f"{count} {name}" for name, count in splits.items())
    return [
        f"{len(annotations.items)} images with labels written to {out}"
        f"{f' ({parts})' if parts else ''}",
        f"{len(mapping.classes)} classes: {', '.join(mapping.classes)}",
    ]
