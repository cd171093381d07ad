"""The catalog: every data set by name.

>>> from hemnet.data import open_dataset
>>> dataset = open_dataset("scenes", split="val")
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hemnet.data import folders
from hemnet.data import huggingface as hf
from hemnet.data.class_lists import colour_map, find_classes
from hemnet.data.dataset import FileDataset, Info, Pair, SegmentationDataset
from hemnet.data.datasets.ade20k import ADE20K
from hemnet.data.datasets.camvid import CAMVID
from hemnet.data.datasets.cityscapes import CITYSCAPES
from hemnet.data.datasets.coco import COCO
from hemnet.data.datasets.coco_stuff import COCO_STUFF
from hemnet.data.datasets.pascal_context import PASCAL_CONTEXT, PASCAL_CONTEXT_59
from hemnet.data.datasets.voc import VOC
from hemnet.data.download import obtain
from hemnet.data.entry import Entry, SplitFiles
from hemnet.data.folder_classes import write_classes
from hemnet.data.generated import GeneratedDataset
from hemnet.data.label_matching import no_layout
from hemnet.data.labels import LabelEncoding
from hemnet.data.recall import Recall
from hemnet.data.scenes import Scenes
from hemnet.errors import UserError

log = logging.getLogger("hemnet")

OFFICIAL: dict[str, Entry] = {
    entry.info.name: entry
    for entry in (
        *(VOC, PASCAL_CONTEXT, PASCAL_CONTEXT_59, COCO_STUFF),
        *(COCO, CAMVID, CITYSCAPES, ADE20K),
    )
}
OWN = {
    info.name: info
    for info in (
        Info("folder", "images/ and labels/ of your own", (), (), {}),
        Info("list", "a file of image and label pairs", (), (), {}),
        Info("hf", "a Hugging Face data set", (), (), {}),
    )
}
GENERATED: dict[str, type[GeneratedDataset]] = {"scenes": Scenes, "recall": Recall}


def list_datasets() -> list[str]:
    """Names that `open_dataset` knows."""
    return [*OFFICIAL, *OWN, *GENERATED]


def dataset_info(name: str) -> Info:
    """Classes, colours and official splits of a data set, without its files."""
    if name in OFFICIAL:
        return OFFICIAL[name].info
    if name in GENERATED:
        return GENERATED[name].info
    if name in OWN:
        return OWN[name]
    raise UserError(f"data set {name!r}: expected one of {', '.join(list_datasets())}.")


def list_splits(
    name: str, root: str | os.PathLike[str] | None = None, labels: str | None = None
) -> list[str]:
    """The splits whose files are in the folder."""
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
            files = OFFICIAL[name].find(base, split)
        except UserError as error:
            problem = error
            continue
        if any(pair.exists for pair in files.pairs):
            present.append(split)
        else:
            problem = UserError(f"{base}: no complete pair of {info.title}. {files.fix}")
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
    drawn: dict[str, Any] = {"size": size, "length": length, "seed": seed}
    _refuse(name, OWN, classes=classes)
    _refuse(name, ["folder"], labels=labels)
    _refuse(name, ["hf"], columns=columns)
    _refuse(name, GENERATED, **drawn)
    _refuse(name, ["recall"], groups=groups)
    _refuse(name, [*OFFICIAL, *OWN], root=root, label_map=label_map)
    if name in GENERATED:
        given = {k: v for k, v in (drawn | {"groups": groups}).items() if v is not None}
        return GENERATED[name](split, **given)
    base = Path(_given(name, root)).expanduser() if name == "hf" else _folder(name, root)
    if name in OWN:
        names, colours, void = find_classes(base, classes, labels)
        info = replace(info, classes=names, palette=colours or colour_map(len(names)))
    else:
        colours, void = OFFICIAL[name].label_colours, ()
        if split not in info.splits:
            raise UserError(f"{name} split {split!r}: expected one of {', '.join(info.splits)}.")
    if name == "hf":
        rows = hf.load(str(base))
        if split not in rows:
            raise UserError(f"{base}: no split {split!r}; it has {', '.join(rows)}.")
        encoding = LabelEncoding(len(info.classes), label_map, colours, void)
        return hf.HuggingFaceDataset(info, split, rows[split], encoding, columns)
    if name == "folder":
        files = folders.find_pairs(base, split, labels)
    elif name == "list":
        files = folders.read_pairs(base, split)
    else:
        files = OFFICIAL[name].find(base, split)
    pairs, notes = _usable(info, split, base, files, skip_missing)
    mapping = files.label_map if label_map is None else label_map
    encoding = LabelEncoding(len(info.classes), mapping, colours, void)
    for note in notes:
        log.warning("%s", note)
    missing = [pair for pair in files.pairs if not pair.exists] if skip_missing else []
    return FileDataset(
        info, split, pairs, encoding, missing=missing, unpaired=files.unpaired, notes=notes
    )


def prepare_dataset(
    name: str,
    root: str | os.PathLike[str] | None,
    *,
    source: str | os.PathLike[str] | None = None,
    labels: str | None = None,
    download: bool = False,
) -> str:
    """Convert a data set's raw labels; returns a report.

    Args:
        name: of the catalog. For `folder`, classes.txt is written from what the labels contain.
        root: where the data set is, or should be.
        source: the folder of the raw labels, if they are elsewhere.
        labels: for `folder`: see `open_dataset`.
        download: fetch what is missing first, where its licence allows.
    """
    dataset_info(name)  # refuses unknown names
    entry = OFFICIAL.get(name)
    prepare = None if entry is None else entry.prepare
    _refuse(name, ["folder"], labels=labels)
    _refuse(name, [key for key, other in OFFICIAL.items() if other.prepare], source=source)
    if download and (entry is None or not entry.archives):
        free = ", ".join(key for key, other in OFFICIAL.items() if other.archives)
        raise UserError(f"{name} cannot be downloaded for you; only {free} can.")
    if name == "folder":
        return write_classes(Path(_given(name, root)), labels)
    if prepare is None:
        return f"{name}: nothing to prepare; it is read as it is distributed."
    place = Path(_given(name, root))
    if download and entry is not None:
        for archive, brings in entry.archives:
            obtain(archive, place, brings)
    return prepare(place, None if source is None else Path(source))


def _refuse(name: str, meant_for: Collection[str], **given: object) -> None:
    """An option that would do nothing is a mistake worth reporting."""
    for option, value in given.items():
        if value is not None and name not in meant_for:
            raise UserError(f"`{option}` is not for {name}, but for {', '.join(meant_for)}.")


def _usable(
    info: Info, split: str, base: Path, files: SplitFiles, skip_missing: bool
) -> tuple[list[Pair], list[str]]:
    """The complete pairs, and notes on the others."""
    complete = [pair for pair in files.pairs if pair.exists]
    missing = len(files.pairs) - len(complete)
    notes = []
    if missing:
        lost = next(pair for pair in files.pairs if not pair.exists)
        first = lost.label if lost.image.is_file() else lost.image
        text = (
            f"{info.name} {split}: {missing} of {len(files.pairs)} listed pairs miss a file "
            f"(first: {first})."
        )
        if not skip_missing or not complete:
            rest = f" Or use the {len(complete)} that are complete: `skip_missing=True`."
            raise UserError(f"{text} {files.fix}{rest if complete else ''}")
        notes.append(f"{text} Using the {len(complete)} that are complete.")
    elif not complete:
        raise UserError(f"{base}: no images for the split {split!r}. {files.fix}")
    official = info.splits.get(split)
    if official is not None and len(complete) != official:
        notes.append(
            f"{info.name} {split}: {len(complete)} images, while the official split has "
            f"{official}. Results do not compare with published ones."
        )
    if files.unpaired:
        notes.append(
            f"{info.name} {split}: {len(files.unpaired)} files without a partner are left out "
            f"(first: {files.unpaired[0]})."
        )
    return complete, notes


def _given(name: str, root: str | os.PathLike[str] | None) -> str:
    if root is None:
        raise UserError(f"{name} is read from a folder: give it as `root`.")
    return os.fspath(root)


def _folder(name: str, root: str | os.PathLike[str] | None) -> Path:
    path = Path(_given(name, root)).expanduser()
    if not path.exists():
        raise UserError(f"{path}: no such file or folder. Give the place of the data as `root`.")
    return path
