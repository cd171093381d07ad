"""Readers of labelling tools' annotations: LabelMe, COCO JSON, CVAT's mask export.

Each reader gives a `Annotations`: its images, what is drawn on each, and its class names. `convert`
writes any of them as our folder layout.
"""

from __future__ import annotations

import base64
import io
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps

from hemnet.data.annotation_shapes import Rasterised, Shape, points, rasterise
from hemnet.data.labels import Colour
from hemnet.data.listing import IMAGE_EXTENSIONS, files_under, read_ids, read_lines
from hemnet.errors import DataError, UserError
from hemnet.image_io import open_image

BACKGROUND = ("background", "_background_", "__background__", "bg")
IGNORED = ("__ignore__", "_ignore_", "ignore", "void", "unlabeled", "unlabelled")
SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val"}
SPLITS |= {"validation": "val", "test": "test", "testing": "test"}


@dataclass
class AnnotatedImage:
    """An image and its annotations."""

    key: str  # its path, without extension
    image: Path
    shapes: list[Shape] = field(default_factory=list)
    split: str | None = None
    size: tuple[int, int] | None = None  # height and width that the annotations are for
    pixels: bytes | None = None  # of the image, where the file beside it is missing
    coloured: Path | None = None  # coloured labels, instead of shapes

    def rasterise(
        self, ids: Mapping[str, int], height: int, width: int, colours: Mapping[Colour, str]
    ) -> Rasterised:
        """Class ids of the image's pixels; `colours` are the names in a coloured label file."""
        if self.coloured is None:
            return rasterise(self.shapes, ids, height, width)
        with open_image(self.coloured) as file:  # a palette's indices mean nothing here
            pixels = np.asarray(file.convert("RGB")).reshape(-1, 3)
            size = file.height, file.width
        found, places = np.unique(pixels, axis=0, return_inverse=True)
        table = np.zeros(len(found), np.uint8)
        for number, colour in enumerate(found.tolist()):
            name = colours.get((colour[0], colour[1], colour[2]))
            if name is None:
                raise DataError(
                    f"{self.coloured}: the colour {tuple(colour)} is not in labelmap.txt. Export "
                    "the task again."
                )
            table[number] = ids.get(name, 0)
        return Rasterised(table[places.ravel()].reshape(size), 0, 0)


@dataclass
class Annotations:
    """All that a tool exported; `classes` in order, without the background."""

    items: list[AnnotatedImage]
    classes: list[str]
    colours: dict[Colour, str] = field(default_factory=dict)  # of coloured labels
    notes: list[str] = field(default_factory=list)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error}). Export it again.") from None


def images_by_name(root: Path, leave_out: Path | None = None) -> dict[str, list[Path]]:
    """Images below a folder, by every name that annotations may use for them."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in files_under(root, IMAGE_EXTENSIONS):
        if leave_out is None or leave_out not in path.parents:
            found[path.name].append(path)
            found[path.stem].append(path)
    return found


def _find(named: str, near: Path, known: Mapping[str, list[Path]]) -> Path | None:
    """The image that an annotation calls `named`: as a path from `near`, or by its name."""
    relative = PurePosixPath(named.replace("\\", "/"))  # as Windows writes it
    if (near / relative).is_file():
        return near / relative
    choices = known.get(relative.name) or known.get(relative.stem, [])
    fitting = [p for p in choices if p.as_posix().endswith(f"/{relative}")] or choices
    return fitting[0] if len(fitting) == 1 else None


def labelme(root: Path, source: Path) -> Annotations:
    """A JSON file for each image, with polygons, rectangles, circles and masks."""
    known = images_by_name(root)
    annotations, found = Annotations([], []), 0
    without_area: dict[str, int] = defaultdict(int)
    for path in files_under(source, (".json",)):
        content = _json(path)
        if not isinstance(content, dict) or "shapes" not in content:
            continue
        found += 1
        named = str(content.get("imagePath") or path.stem)
        image = _find(named, path.parent, known) or _find(path.stem, path.parent, known)
        if image is None and not content.get("imageData"):
            annotations.notes.append(f"{path}: left out, its image {named!r} is not there.")
            continue
        key = path.relative_to(source).with_suffix("").as_posix()
        place = path.with_name(PurePosixPath(named.replace("\\", "/")).name)
        item = AnnotatedImage(key, image or place)
        if image is None:
            item.pixels = base64.b64decode(content["imageData"])
        if content.get("imageHeight") and content.get("imageWidth"):
            item.size = int(content["imageHeight"]), int(content["imageWidth"])
        for number, raw in enumerate(content["shapes"]):
            try:
                shape = _labelme_shape(raw)
            except (KeyError, TypeError, ValueError, IndexError, OSError) as error:
                raise DataError(
                    f"{path}: shape {number + 1} is damaged ({error!r}). Correct it in LabelMe."
                ) from None
            if shape is None:
                without_area[str(raw.get("shape_type"))] += 1
            else:
                item.shapes.append(shape)
        annotations.items.append(item)
    if not found:
        raise UserError(
            f"{source}: no LabelMe annotations (.json files with shapes). Give the folder that "
            "LabelMe saved into as `source`."
        )
    for kind, count in without_area.items():
        annotations.notes.append(
            f"{count} shapes of the kind {kind!r} have no area and are left out."
        )
    annotations.classes = sorted({s.name for item in annotations.items for s in item.shapes})
    return annotations


def _labelme_shape(raw: dict[str, Any]) -> Shape | None:
    kind, name = raw.get("shape_type") or "polygon", str(raw["label"])
    corners = points(raw["points"])
    if kind == "rectangle" and len(corners) == 2:
        (x, y), (right, bottom) = corners
        return Shape(name, [points([x, y, right, y, right, bottom, x, bottom])])
    if kind in ("polygon", "rectangle", "oriented_rectangle"):
        return Shape(name, [corners])
    if kind == "circle":
        (x, y), edge = corners[0], corners[1]
        return Shape(name, circle=(float(x), float(y), float(np.hypot(*(edge - corners[0])))))
    if kind == "mask":
        with Image.open(io.BytesIO(base64.b64decode(raw["mask"])), formats=("PNG",)) as picture:
            mask = np.asarray(picture.convert("L")) > 0
        return Shape(name, patch=(round(corners[0, 0]), round(corners[0, 1]), mask))
    return None


def coco_json(root: Path, source: Path) -> Annotations:
    """Files with images, annotations and categories; polygons and run lengths (RLE)."""
    files = [source] if source.is_file() else files_under(source, (".json",))
    contents = [(path, _json(path)) for path in files]
    wanted = {"images", "annotations", "categories"}
    contents = [(p, c) for p, c in contents if isinstance(c, dict) and wanted <= set(c)]
    if not contents:
        raise UserError(
            f"{source}: no COCO annotations (a .json file with images, annotations and "
            "categories). Give the file as `source`."
        )
    known = images_by_name(root)
    annotations, boxes = Annotations([], []), 0
    for path, content in contents:
        try:
            boxes += _coco_file(path, content, known, annotations, root, split_of(path, contents))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: not COCO annotations ({error!r}). Export it again.") from None
    if boxes:
        annotations.notes.append(
            f"{boxes} annotations have a box and no outline: they are left out."
        )
    return annotations


def split_of(path: Path, files: list[Any]) -> str | None:
    """`train` from instances_train2017.json or train/_annotations.coco.json; one file has none."""
    if len(files) == 1:
        return None
    words = f"{path.parent.name} {path.stem}".lower().replace("_", " ").replace("-", " ")
    named = [SPLITS[w] for word in words.split() if (w := word.strip("0123456789.")) in SPLITS]
    if not named:
        raise UserError(
            f"{path}: one of {len(files)} annotation files, and neither it nor its folder is "
            "called train, val or test. Rename it, or give one file as `source`."
        )
    return named[-1]


def _coco_file(
    path: Path,
    content: dict[str, Any],
    known: Mapping[str, list[Path]],
    annotations: Annotations,
    root: Path,
    split: str | None,
) -> int:
    used = {a["category_id"] for a in content["annotations"]}
    above = {c.get("supercategory") for c in content["categories"]}
    names = {}
    for category in sorted(content["categories"], key=lambda c: c["id"]):
        if category["name"] in above and category["id"] not in used:
            continue  # a heading of the others, as Roboflow writes it
        names[category["id"]] = str(category["name"])
    annotations.classes += [n for n in names.values() if n not in annotations.classes]
    shapes, boxes = defaultdict(list), 0
    for annotation in content["annotations"]:
        outline, name = annotation.get("segmentation"), names[annotation["category_id"]]
        if not outline:
            boxes += 1
        elif isinstance(outline, dict):
            shapes[annotation["image_id"]].append(Shape(name, runs=outline["counts"]))
        else:
            polygons = [points(polygon) for polygon in outline]
            shapes[annotation["image_id"]].append(Shape(name, polygons))
    lost = []
    for entry in content["images"]:
        image = _find(entry["file_name"], path.parent, known)
        if image is None:
            lost.append(entry["file_name"])
            continue
        named = PurePosixPath(entry["file_name"].replace("\\", "/")).with_suffix("")
        outside = {"..", "/"} & {*named.parts} or ":" in named.parts[0]
        key = named.name if outside else named.as_posix()
        size = (int(entry["height"]), int(entry["width"])) if entry.get("height") else None
        annotations.items.append(AnnotatedImage(key, image, shapes[entry["id"]], split, size))
    if lost:
        annotations.notes.append(
            f"{path.name}: {len(lost)} of {len(content['images'])} images are not below {root} "
            f"(first: {lost[0]}). They are left out."
        )
    return boxes


def cvat(root: Path, source: Path) -> Annotations:
    """CVAT's "Segmentation mask" export: labelmap.txt, SegmentationClass/, ImageSets/."""
    base = next((p.parent for p in sorted(source.rglob("labelmap.txt"))), None)
    if base is None or not (base / "SegmentationClass").is_dir():
        raise UserError(
            f"{source}: no labelmap.txt with SegmentationClass/ beside it. Export the task from "
            "CVAT as `Segmentation mask`, unpack it, and give its folder."
        )
    names: list[str] = []
    colours: dict[Colour, str] = {(0, 0, 0): "background"}
    for number, line in enumerate(read_lines(base / "labelmap.txt"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        try:
            red, green, blue = (int(part) for part in rest.split(":")[0].split(","))
        except ValueError:
            raise UserError(
                f"{base / 'labelmap.txt'}, line {number}: expected name:red,green,blue::, found "
                f"{line[:80]!r}."
            ) from None
        names.append(name)
        colours[red, green, blue] = name
    sets = sorted((base / "ImageSets" / "Segmentation").glob("*.txt"))
    split = {key: p.stem for p in sets for key in read_ids(p)} if len(sets) > 1 else {}
    known = images_by_name(root)
    annotations = Annotations([], names, colours)
    masks = base / "SegmentationClass"
    coloured = {masks, base / "SegmentationObject"}
    for path in files_under(masks, (".png",)):
        key = path.relative_to(masks).with_suffix("").as_posix()
        images = [p for p in known.get(path.stem, []) if not coloured & {*p.parents}]
        whole = [p for p in images if p.with_suffix("").as_posix().endswith(f"/{key}")] or images
        if len(whole) != 1:
            found = "is not there" if not whole else "could be one of several"
            annotations.notes.append(f"{path}: left out, its image {found}.")
            continue
        named = SPLITS.get(split.get(key, "").lower(), split.get(key)) if split else None
        annotations.items.append(AnnotatedImage(key, whole[0], split=named, coloured=path))
    return annotations


READERS: dict[str, Callable[[Path, Path], Annotations]] = {
    "labelme": labelme,
    "coco-json": coco_json,
    "cvat": cvat,
}


def upright(item: AnnotatedImage) -> tuple[Image.Image | None, tuple[int, int]]:
    """The image as its tool showed it, if the file's EXIF orientation differs, and its size."""
    source = item.image if item.pixels is None else item.pixels
    with open_image(source, str(item.image)) as file:
        stored = file.height, file.width
        orientation = file.getexif().get(ExifTags.Base.Orientation, 1)
        as_stored = orientation > 4 and item.size == stored and stored[0] != stored[1]
        if orientation not in range(2, 9) or as_stored:
            return None, stored
        turned = ImageOps.exif_transpose(file)
        return turned, (turned.height, turned.width)
