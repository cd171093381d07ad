"""COCO-Stuff: 10k (train, test) and 164k (train2017, val2017), 171 classes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from hemnet.data.class_lists import colour_map, official_ids, raw_classes
from hemnet.data.dataset import Info
from hemnet.data.download import Archive
from hemnet.data.entry import Entry, SplitFiles, pairs_by_id
from hemnet.data.label_conversion import convert, find_mats, read_mat, write_png
from hemnet.data.labels import VOID
from hemnet.data.listing import files_under, find_root
from hemnet.errors import DataError

_FOLDERS_10K = ("cocostuff-10k-v1.1", "cocostuff10k")
_LABELS_164K = ("annotations", "stuffthingmaps", "labels")
# No checksum is published: that the archive is theirs, only TLS says.
_ARCHIVE = Archive(
    "https://calvin.inf.ed.ac.uk/wp-content/uploads/data/cocostuffdataset/cocostuff-10k-v1.1.zip"
)


@cache
def label_map(first: int) -> dict[int, int]:
    """Raw value → class, for values that start at `first`; removed categories are void."""
    kept = {raw: index for index, raw in enumerate(raw_classes("coco_stuff"))}
    return {raw - 1 + first: kept.get(raw, VOID) for raw in range(1 - first, 183)}


def find(root: Path, split: str) -> SplitFiles:
    if split.endswith("2017"):  # 164k: values are the raw id less one
        base = find_root(root, f"images/{split}", ("coco", "COCO"))
        folders = (base / name / split for name in _LABELS_164K)
        labels = next((f for f in folders if f.is_dir()), base / _LABELS_164K[0] / split)
        images = base / "images" / split
        ids = [path.stem for path in files_under(images, (".jpg",))]
        fix = "Unpack stuffthingmaps_trainval2017.zip into annotations/."
        return SplitFiles(pairs_by_id(ids, images, labels), label_map(0), fix=fix)
    base = find_root(root, "images", _FOLDERS_10K)
    members = official_ids("cocostuff10k").items()
    ids = [f"COCO_train2014_{int(number):012d}" for number, part in members if part == split]
    return SplitFiles(
        pairs_by_id(ids, base / "images", base / "labels"),
        label_map(1),
        fix="Convert the .mat label maps: hemnet data prepare coco_stuff.",
    )


def prepare(root: Path, source: Path | None = None) -> str:
    """labels/ID.png with the raw ids 0 … 182 from the `.mat` files of 10k."""
    base = find_root(root, "images", _FOLDERS_10K)
    mats = find_mats((source or base / "annotations",), _ARCHIVE.name)
    return convert(convert_mat, [(path, base / "labels" / f"{path.stem}.png") for path in mats])


def convert_mat(job: tuple[Path, Path]) -> None:
    source, target = job
    values = np.asarray(read_mat(source, "S"))
    if values.min() < 0 or values.max() > 182:
        raise DataError(f"{source}: ids up to {values.max()}; expected 0 to 182.")
    write_png(target, values.astype(np.uint8))


_COLOURS = tuple(colour_map(183)[raw] for raw in raw_classes("coco_stuff"))
COCO_STUFF = Entry(
    Info(
        "coco_stuff",
        "COCO-Stuff 10k (train, test) and 164k (train2017, val2017)",
        tuple(raw_classes("coco_stuff").values()),
        _COLOURS,
        {"train": 9000, "test": 1000, "train2017": 118287, "val2017": 5000},
    ),
    find,
    prepare,
    archives=((_ARCHIVE, "annotations"),),
    label_colours=_COLOURS,
)
