"""ADE20K, the 150 classes of the scene parsing challenge."""

from __future__ import annotations

from pathlib import Path

from hemnet.data.class_lists import packaged_text, parse_classes
from hemnet.data.dataset import Info
from hemnet.data.entry import Entry, SplitFiles, pairs_by_id
from hemnet.data.labels import VOID
from hemnet.data.listing import files_under, find_root


def find(root: Path, split: str) -> SplitFiles:
    base = find_root(root, "annotations", ("ADEChallengeData2016",))
    folder = {"train": "training", "val": "validation"}[split]
    images = base / "images" / folder
    ids = [path.stem for path in files_under(images, (".jpg",))]
    return SplitFiles(
        pairs_by_id(ids, images, base / "annotations" / folder),
        {0: VOID} | {value: value - 1 for value in range(1, 151)},
        fix="Unpack ADEChallengeData2016.zip again.",
    )


_CLASSES, _COLOURS, _ = parse_classes(packaged_text("ade20k.txt"))
ADE20K = Entry(
    Info("ade20k", "ADE20K", _CLASSES, _COLOURS, {"train": 20210, "val": 2000}),
    find,
    label_colours=_COLOURS,
)
