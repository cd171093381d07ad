"""COCO's instance masks as labels of VOC's classes, for the paper's pre-training."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemnet.data.dataset import Info
from hemnet.data.datasets import voc
from hemnet.data.entry import Entry, SplitFiles, pairs_by_id
from hemnet.data.label_conversion import need, write_png
from hemnet.data.labels import VOID
from hemnet.data.listing import files_under, find_root
from hemnet.errors import UserError
from hemnet.progress import track

MIN_PIXELS = 1000  # images with less of VOC's classes teach little; DeepLab's pre-training rule
# COCO category → VOC class.
CATEGORIES = dict(
    zip(
        (5, 2, 16, 9, 44, 6, 3, 17, 62, 21, 67, 18, 19, 4, 1, 64, 20, 63, 7, 72),
        range(1, 21),
        strict=True,
    )
)
_FOLDERS, _SPLITS = ("coco", "COCO"), ("train2017", "val2017")


def find(root: Path, split: str) -> SplitFiles:
    """The images that `prepare` found worth rendering."""
    base = find_root(root, "annotations", _FOLDERS)
    labels = base / "voc_labels" / split
    if not labels.is_dir():
        raise UserError(
            f"{labels}: no such folder. Render the instance masks first: hemnet data prepare coco."
        )
    images = base / "images" / split if (base / "images" / split).is_dir() else base / split
    ids = [path.stem for path in files_under(labels, (".png",))]
    return SplitFiles(pairs_by_id(ids, images, labels), fix=f"Unpack {split}.zip.")


def prepare(root: Path, source: Path | None = None) -> str:
    """voc_labels/SPLIT/ID.png for every image with enough of VOC's classes."""
    base = find_root(root, "annotations", _FOLDERS)
    tools = need("pycocotools.coco")
    folder = source or base / "annotations"
    files = {split: folder / f"instances_{split}.json" for split in _SPLITS}
    if not any(file.is_file() for file in files.values()):
        raise UserError(
            f"{folder}: no instances_train2017.json. Unpack annotations_trainval2017.zip."
        )
    reports = []
    for split, file in files.items():
        if not file.is_file():
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
                coco = tools.COCO(str(file))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file}: not COCO annotations ({error}). Unpack it again.") from None
        target = base / "voc_labels" / split
        target.mkdir(parents=True, exist_ok=True)
        ids = {i for category in CATEGORIES for i in coco.getImgIds(catIds=[category])}
        images = coco.loadImgs(sorted(ids))
        kept = 0
        for image in track(images, split, len(images)):
            path = target / (Path(image["file_name"]).stem + ".png")
            if not path.exists():
                labels = render(coco, image)
                if int(((labels != 0) & (labels != VOID)).sum()) < MIN_PIXELS:
                    continue
                write_png(path, labels)
            kept += 1
        reports.append(f"{kept} labels in {target}, of {len(images)} images with VOC's classes")
    return "; ".join(reports)


def render(coco: Any, image: dict[str, Any]) -> NDArray[np.uint8]:
    """VOC classes of one image, (H, W). Crowds, and where two classes overlap, are void."""
    labels = np.zeros((image["height"], image["width"]), np.uint8)
    annotations = coco.loadAnns(coco.getAnnIds(imgIds=image["id"], catIds=list(CATEGORIES)))
    contested = np.zeros(labels.shape, bool)
    # Crowds first: a separate object inside the outline of a crowd keeps its own label.
    for annotation in sorted(annotations, key=lambda a: -a.get("iscrowd", 0)):
        where = coco.annToMask(annotation).astype(bool)
        if annotation.get("iscrowd", 0):
            labels[where] = VOID
            continue
        label = CATEGORIES[annotation["category_id"]]
        contested |= where & (labels != 0) & (labels != label) & (labels != VOID)
        labels[where] = label
    labels[contested] = VOID
    return labels


COCO = Entry(
    # Only images with objects of VOC's classes are rendered, so no size is official.
    Info("coco", "COCO in VOC's classes", voc.CLASSES, voc.COLOURS, dict.fromkeys(_SPLITS)),
    find,
    prepare,
    label_colours=voc.COLOURS,
)
