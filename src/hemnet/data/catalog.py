"""The catalog: every data set by name, with its classes, colours, splits and official sizes.

>>> from hemnet.data import open_dataset
>>> dataset = open_dataset("scenes", split="val")
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hemnet.data import class_lists as known
from hemnet.data import folders, layouts
from hemnet.data import huggingface as hf
from hemnet.data.dataset import FileDataset, Info, SegmentationDataset
from hemnet.data.label_matching import no_layout
from hemnet.data.labels import Coding
from hemnet.data.layouts import Layout, Pair
from hemnet.data.recall import RECALL, Recall
from hemnet.data.scenes import SCENES, Scenes
from hemnet.errors import UserError

log = logging.getLogger("hemnet")


@dataclass(frozen=True)
class Entry:
    info: Info
    find: Callable[[Path, str], Layout]


def _pascal_context(count: int) -> Info:
    names = tuple(known.raw_classes("pascal_context").values())
    first = 60 - count
    return Info(
        "pascal_context" if count == 60 else "pascal_context_59",
        f"PASCAL Context, {count} classes",
        names[first:],
        known.colour_map(60)[first:],
        {"train": 4998, "val": 5105},
    )


def _entries() -> dict[str, Entry]:
    coco_sizes = {"train2017": 118287, "val2017": 5000}
    stuff = known.raw_classes("coco_stuff")
    palette = known.colour_map(183)
    cityscapes_colours = tuple(colour for _, colour in known.CITYSCAPES.values())
    voc_sizes = {"train": 1464, "trainaug": 10582, "trainval": 2913, "val": 1449}
    infos: list[tuple[Info, Callable[[Path, str], Layout]]] = [
        (Info("voc", "PASCAL VOC 2012", known.VOC, known.colour_map(21), voc_sizes), layouts.voc),
        (_pascal_context(60), layouts.pascal_context),
        (_pascal_context(59), layouts.pascal_context_59),
        (
            Info(
                "coco_stuff",
                "COCO-Stuff 10k (train, test) and 164k (train2017, val2017)",
                tuple(stuff.values()),
                tuple(palette[raw] for raw in stuff),
                {"train": 9000, "test": 1000} | coco_sizes,
            ),
            layouts.coco_stuff,
        ),
        (
            # Only images with objects of VOC's classes are rendered, so no size is official.
            Info(
                "coco",
                "COCO in VOC's classes",
                known.VOC,
                known.colour_map(21),
                dict.fromkeys(coco_sizes),
            ),
            layouts.coco,
        ),
        (
            Info(
                "camvid",
                "CamVid",
                known.CAMVID,
                known.CAMVID_COLOURS,
                {"train": 367, "val": 101, "test": 233},
            ),
            layouts.camvid,
        ),
        (
            Info(
                "cityscapes",
                "Cityscapes",
                tuple(known.CITYSCAPES),
                cityscapes_colours,
                {"train": 2975, "val": 500},
            ),
            layouts.cityscapes,
        ),
        (
            Info("ade20k", "ADE20K", *known.ade20k(), {"train": 20210, "val": 2000}),
            layouts.ade20k,
        ),
        (Info("folder", "images/ and labels/ of your own", (), (), {}), folders.folder),
        (Info("list", "a file of image and label pairs", (), (), {}), folders.pair_list),
        (Info("hf", "a Hugging Face data set", (), (), {}), _no_files),
        (SCENES, _no_files),
        (RECALL, _no_files),
    ]
    return {info.name: Entry(info, find) for info, find in infos}


def _no_files(root: Path, split: str) -> Layout:
    raise AssertionError("drawn, or not read from files in folders")


CATALOG = _entries()
OWN = ("folder", "list", "hf")
GENERATED = {"scenes": Scenes, "recall": Recall}


def list_datasets() -> list[str]:
    """Names that `open_dataset` knows."""
    return list(CATALOG)


def dataset_info(name: str) -> Info:
    """Classes, colours and official splits of a data set, without its files."""
    if name not in CATALOG:
        raise UserError(f"data set {name!r}: expected one of {', '.join(CATALOG)}.")
    return CATALOG[name].info


def splits_present(
    name: str, root: str | os.PathLike[str] | None, labels: str | None = None
) -> list[str]:
    """The splits of a data set that the folder has files of."""
    info = dataset_info(name)
    if name in GENERATED:
        return list(info.splits)
    if name == "hf":
        return list(hf.load(_given(name, root)))
    base = _folder(name, root)
    if name == "folder":
        found = folders.folder_splits(base, labels is not None)
        if not found:
            raise no_layout(base)
        return found
    if name == "list":
        return folders.list_splits(base)
    present, problem = [], None
    for split in info.splits:
        try:
            layout = CATALOG[name].find(base, split)
        except UserError as error:
            problem = error
            continue
        if any(_complete(pair) for pair in layout.pairs):
            present.append(split)
        else:
            problem = UserError(f"{base}: no complete pair of {info.title}. {layout.fix}")
    if not present and problem is not None:
        raise problem
    return present


def open_dataset(
    name: str,
    root: str | os.PathLike[str] | None = None,
    split: str = "train",
    *,
    skip_missing: bool = False,
    classes: str | list[str] | None = None,
    label_map: Mapping[int, int] | None = None,
    labels: str | None = None,
    columns: Sequence[str] | None = None,
    size: int | Sequence[int] | None = None,
    length: int | None = None,
    seed: int | None = None,
    groups: int | None = None,
) -> SegmentationDataset:
    """Open a split of a data set by name.

    Args:
        name: of the catalog, such as "voc", "folder" or "scenes".
        root: its folder; a file for `list`, nothing for `scenes` and `recall`.
        split: such as "train" or "val".
        skip_missing: skip listed pairs whose files are missing (else an error).
        classes: for `folder` and `list`: names, a file of them, or their number.
        label_map: value in the label files → class or 255, instead of the data set's own.
        labels: for `folder`: how label files are called, such as `{stem}_mask.png`.
        columns: for `hf`: the names of the image and the mask column; None to find them.
        size: side, or height and width, of generated images; None for 128.
        length: number of generated images; None for 4000 (train) or 400 (val).
        seed: of generated images; None for 0.
        groups: number of groups in every image of `recall`; None draws it from 2 to 12.

    Examples:
        >>> image, mask, name = open_dataset("scenes", split="val", size=96)[0]
        >>> image.shape, mask.shape, name
        (torch.Size([3, 96, 96]), torch.Size([96, 96]), 'val-0-0')
    """
    info = dataset_info(name)
    _refuse(name, {"classes": classes}, OWN)
    _refuse(name, {"labels": labels}, ("folder",))
    _refuse(name, {"columns": columns}, ("hf",))
    _refuse(name, {"size": size, "length": length, "seed": seed}, list(GENERATED))
    _refuse(name, {"groups": groups}, ["recall"])
    _refuse(name, {"label map": label_map}, [other for other in CATALOG if other not in GENERATED])
    size, seed = 128 if size is None else size, seed or 0
    if name == "scenes":
        return Scenes(split, size=size, length=length, seed=seed)
    if name == "recall":
        return Recall(split, size=size, length=length, seed=seed, groups=groups)
    base = Path(_given(name, root)).expanduser() if name == "hf" else _folder(name, root)
    if name in OWN:
        names, colours, void = folders.find_classes(base, classes, labels)
        info = replace(info, classes=names, palette=colours or known.colour_map(len(names)))
    else:
        colours, void = tuple(info.palette), ()
        if split not in info.splits:
            raise UserError(f"{name} split {split!r}: expected one of {', '.join(info.splits)}.")
    if name == "hf":
        rows = hf.load(str(base))
        if split not in rows:
            raise UserError(f"{base}: no split {split!r}; it has {', '.join(rows)}.")
        coding = Coding(len(info.classes), label_map, colours, void)
        return hf.HuggingFaceDataset(info, split, rows[split], coding, columns)
    if name == "folder":
        layout = folders.folder(base, split, labels)
    else:
        layout = CATALOG[name].find(base, split)
    pairs, notes = _usable(info, split, base, layout, skip_missing)
    mapping = label_map if label_map is not None else layout.label_map
    coding = Coding(len(info.classes), mapping, colours, void)
    for note in notes:
        log.warning("%s", note)
    missing = [pair for pair in layout.pairs if not _complete(pair)] if skip_missing else []
    return FileDataset(
        info, split, pairs, coding, missing=missing, unpaired=layout.unpaired, notes=notes
    )


def _refuse(name: str, given: Mapping[str, object], meant_for: Sequence[str]) -> None:
    """An option that would do nothing is a mistake worth saying."""
    for option, value in given.items():
        if value is not None and name not in meant_for:
            raise UserError(f"{option} is not for {name}, but for {', '.join(meant_for)}.")


def _usable(
    info: Info, split: str, base: Path, layout: Layout, skip_missing: bool
) -> tuple[list[Pair], list[str]]:
    complete = [pair for pair in layout.pairs if _complete(pair)]
    missing = len(layout.pairs) - len(complete)
    notes = []
    if missing:
        lost = next(pair for pair in layout.pairs if not _complete(pair))
        first = lost.label if lost.image.is_file() else lost.image
        text = (
            f"{info.name} {split}: {missing} of {len(layout.pairs)} listed pairs miss a file "
            f"(first: {first})."
        )
        if not skip_missing or not complete:
            rest = (
                f" Or use the {len(complete)} that are complete: --skip-missing."
                if complete
                else ""
            )
            raise UserError(f"{text} {layout.fix}{rest}")
        notes.append(f"{text} Using the {len(complete)} that are complete.")
    elif not complete:
        raise UserError(f"{base}: no images for the split {split!r}. {layout.fix}")
    official = info.splits.get(split)
    if official is not None and len(complete) != official:
        notes.append(
            f"{info.name} {split}: {len(complete)} images, while the official split has "
            f"{official}. Results do not compare with published ones."
        )
    if layout.unpaired:
        notes.append(
            f"{info.name} {split}: {len(layout.unpaired)} files without a partner are left out "
            f"(first: {layout.unpaired[0]})."
        )
    return complete, notes


def _complete(pair: Pair) -> bool:
    return pair.image.is_file() and pair.label.is_file()


def _given(name: str, root: str | os.PathLike[str] | None) -> str:
    if root is None:
        raise UserError(f"{name} is read from a folder: give it with --root.")
    return os.fspath(root)


def _folder(name: str, root: str | os.PathLike[str] | None) -> Path:
    path = Path(_given(name, root)).expanduser()
    if not path.exists():
        raise UserError(f"{path}: no such file or folder. Give the place of the data with --root.")
    return path
