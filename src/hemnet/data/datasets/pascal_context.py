"""PASCAL Context with 60 classes, and with 59: the background is void."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from hemnet.data.class_lists import colour_map, raw_classes
from hemnet.data.dataset import Info
from hemnet.data.entry import Entry, SplitFiles, pairs_by_id
from hemnet.data.label_conversion import convert, find_mats, read_mat, write_png
from hemnet.data.labels import VOID
from hemnet.data.listing import find_root, read_ids
from hemnet.errors import UserError

_FOLDERS = ("VOC2010", "VOCdevkit/VOC2010")
_LABELS = "SegmentationClassContext"


def find(root: Path, split: str) -> SplitFiles:
    """The raw ids that count, in ascending order, are classes 1 … 59; 0 is the background."""
    base = find_root(root, "JPEGImages", _FOLDERS)
    lists = [base / "ImageSets" / kind / f"{split}.txt" for kind in ("SegmentationContext", "Main")]
    listed = next((path for path in lists if path.exists()), None)
    if listed is None:
        raise UserError(
            f"{lists[1]}: no such file. PASCAL Context uses the lists of the VOC 2010 devkit; "
            "unpack VOCtrainval_03-May-2010.tar here."
        )
    return SplitFiles(
        pairs_by_id(read_ids(listed), base / "JPEGImages", base / _LABELS),
        fix="Convert the raw label maps: hemnet data prepare pascal_context.",
    )


def find_59(root: Path, split: str) -> SplitFiles:
    label_map = {0: VOID} | {index: index - 1 for index in range(1, 60)}
    return replace(find(root, split), label_map=label_map)


def prepare(root: Path, source: Path | None = None) -> str:
    """SegmentationClassContext from the raw `.mat` label maps."""
    base = find_root(root, "JPEGImages", _FOLDERS)
    places = (source,) if source else (base / "trainval", root / "trainval")
    mats = find_mats(places, "trainval.tar.gz")
    return convert(_label, [(path, base / _LABELS / f"{path.stem}.png") for path in mats])


def _label(job: tuple[Path, Path]) -> None:
    source, target = job
    table = np.zeros(65536, np.uint8)  # what is not among the 59 is background
    for index, value in enumerate(raw_classes("pascal_context")):
        table[value] = index
    write_png(target, table[np.asarray(read_mat(source, "LabelMap")).astype(np.uint16)])


_CLASSES, _COLOURS = tuple(raw_classes("pascal_context").values()), colour_map(60)
_SIZES = {"train": 4998, "val": 5105}
PASCAL_CONTEXT = Entry(
    Info("pascal_context", "PASCAL Context, 60 classes", _CLASSES, _COLOURS, _SIZES),
    find,
    prepare,
    label_colours=_COLOURS,
)
PASCAL_CONTEXT_59 = Entry(
    Info("pascal_context_59", "PASCAL Context, 59 classes", _CLASSES[1:], _COLOURS[1:], _SIZES),
    find_59,
    prepare,
    label_colours=_COLOURS[1:],
)
