"""COCO's instance masks as VOC labels, for the paper's pre-training."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemnet.data.class_lists import COCO_TO_VOC
from hemnet.data.label_conversion import need, write_png
from hemnet.data.labels import VOID
from hemnet.data.layouts import enter
from hemnet.errors import UserError
from hemnet.progress import track

MIN_PIXELS = 1000  # images with less of VOC's classes teach little; DeepLab's pre-training rule


def render(coco: Any, image: dict[str, Any]) -> NDArray[np.uint8]:
    """VOC classes of one image, (H, W). Crowds, and where two classes overlap, are void."""
    labels = np.zeros((image["height"], image["width"]), np.uint8)
    annotations = coco.loadAnns(coco.getAnnIds(imgIds=image["id"], catIds=list(COCO_TO_VOC)))
    contested = np.zeros(labels.shape, bool)
    # Crowds first: a separate object inside the outline of a crowd keeps its own label.
    for annotation in sorted(annotations, key=lambda a: -a.get("iscrowd", 0)):
        where = coco.annToMask(annotation).astype(bool)
        if annotation.get("iscrowd", 0):
            labels[where] = VOID
            continue
        label = COCO_TO_VOC[annotation["category_id"]]
        contested |= where & (labels != 0) & (labels != label) & (labels != VOID)
        labels[where] = label
    labels[contested] = VOID
    return labels


def prepare_coco(root: Path, source: Path | None = None, fetch: bool = False) -> str:
    """voc_labels/SPLIT/ID.png for every image with enough of VOC's classes."""
    if fetch:
        raise UserError("COCO's images have many licences: download them from cocodataset.org.")
    base = enter(root, "annotations", ("coco", "COCO"))
    tools = need("pycocotools.coco")
    folder = source or base / "annotations"
    splits = [s for s in ("train2017", "val2017") if (folder / f"instances_{s}.json").is_file()]
    if not splits:
        raise UserError(
            f"{folder}: no instances_train2017.json. Unpack annotations_trainval2017.zip."
        )
    said = []
    for split in splits:
        file = folder / f"instances_{split}.json"
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
                coco = tools.COCO(str(file))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file}: not COCO annotations ({error}). Unpack it again.") from None
        target = base / "voc_labels" / split
        target.mkdir(parents=True, exist_ok=True)
        images = coco.loadImgs(sorted({i for c in COCO_TO_VOC for i in coco.getImgIds(catIds=[c])}))
        kept = 0
        for image in track(images, split, len(images)):
            path = target / (Path(image["file_name"]).stem + ".png")
            if not path.exists():
                labels = render(coco, image)
                if int(((labels != 0) & (labels != VOID)).sum()) < MIN_PIXELS:
                    continue
                write_png(path, labels)
            kept += 1
        said.append(f"{kept} labels in {target}, of {len(images)} images with VOC's classes")
    return "; ".join(said)
