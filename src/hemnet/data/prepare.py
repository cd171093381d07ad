"""Raw labels into PNG files that the readers take: SBD, PASCAL Context, COCO-Stuff, COCO.

Every file is written whole or not at all, so a conversion that broke off goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from hemnet.data import download as archives
from hemnet.data import folders as own
from hemnet.data.class_lists import official_ids, raw_classes
from hemnet.data.coco_to_voc import prepare_coco
from hemnet.data.folders import find_classes, folder_splits
from hemnet.data.label_conversion import convert, read_mat, write_png
from hemnet.data.label_matching import no_layout
from hemnet.data.labels import MAX_CLASSES, VOID, DataError, raw_values
from hemnet.data.layouts import enter
from hemnet.errors import UserError
from hemnet.progress import track


def _sbd_label(job: tuple[Path, Path]) -> None:
    source, target = job
    if source.suffix == ".mat":
        values = np.asarray(read_mat(source, "GTcls")["Segmentation"][0, 0], np.uint8)
    else:
        values = raw_values(source).astype(np.uint8)
    write_png(target, values)


def prepare_voc(root: Path, source: Path | None = None, fetch: bool = False) -> str:
    """SegmentationClassAug from the devkit's labels and, for the rest of trainaug, SBD's."""
    if fetch:
        archives.obtain(archives.VOC, root, "VOCdevkit/VOC2012/SegmentationClass")
        archives.obtain(archives.SBD, root, "benchmark_RELEASE/dataset/cls")
    base = enter(root, "JPEGImages", ("VOC2012", "VOCdevkit/VOC2012"))
    above = source or root
    places = ("cls", "dataset/cls", "benchmark_RELEASE/dataset/cls", "SBD/cls", "sbd/cls")
    mats = next((above / p for p in places if (above / p).is_dir()), None)
    if mats is None:
        raise UserError(
            f"{above}: no SBD labels (expected one of {', '.join(places)}). Unpack benchmark.tgz "
            "here, name its folder with --source, or let --download fetch it."
        )
    jobs, lost = [], []
    for name in official_ids("voc2012"):
        devkit = base / "SegmentationClass" / f"{name}.png"
        found = devkit if devkit.exists() else mats / f"{name}.mat"
        target = base / "SegmentationClassAug" / f"{name}.png"
        if not found.exists() and not target.exists():
            lost.append(found)
        jobs.append((found, target))
    if lost:
        raise UserError(
            f"{len(lost)} of {len(jobs)} labels are neither in the devkit nor in SBD (first: "
            f"{lost[0]}). Unpack both archives again; nothing was written."
        )
    done = convert(_sbd_label, jobs, "SegmentationClassAug")
    return f"{done} labels written to {base / 'SegmentationClassAug'} ({len(jobs)} in all)"


def _context_label(job: tuple[Path, Path]) -> None:
    source, target = job
    raw = np.asarray(read_mat(source, "LabelMap"))
    table = np.zeros(65536, np.uint8)  # what is not among the 59 is background
    for index, value in enumerate(raw_classes("pascal_context")):
        table[value] = index
    write_png(target, table[raw.astype(np.uint16)])


def prepare_pascal_context(root: Path, source: Path | None = None, fetch: bool = False) -> str:
    """SegmentationClassContext (0 background, 1 … 59) from the raw `.mat` label maps."""
    _no_download("pascal_context", fetch)
    base = enter(root, "JPEGImages", ("VOC2010", "VOCdevkit/VOC2010"))
    found = _mats(source, (base / "trainval", root / "trainval"), "trainval.tar.gz")
    target = base / "SegmentationClassContext"
    done = convert(_context_label, [(p, target / f"{p.stem}.png") for p in found], target.name)
    return f"{done} labels written to {target} ({len(found)} in all)"


def _stuff_label(job: tuple[Path, Path]) -> None:
    source, target = job
    values = np.asarray(read_mat(source, "S"))
    if values.min() < 0 or values.max() > 182:
        raise DataError(f"{source}: ids up to {values.max()}; expected 0 to 182.")
    write_png(target, values.astype(np.uint8))


def prepare_coco_stuff(root: Path, source: Path | None = None, fetch: bool = False) -> str:
    """labels/ID.png with the raw ids 0 … 182 from COCO-Stuff 10k's `.mat` files."""
    if fetch:
        archives.obtain(archives.COCO_STUFF_10K, root, "annotations")
    base = enter(root, "images", ("cocostuff-10k-v1.1", "cocostuff10k"))
    found = _mats(source, (base / "annotations",), archives.COCO_STUFF_10K.name)
    target = base / "labels"
    done = convert(_stuff_label, [(p, target / f"{p.stem}.png") for p in found], "labels")
    return f"{done} labels written to {target} ({len(found)} in all)"


def _mats(source: Path | None, places: Iterable[Path], archive: str) -> list[Path]:
    folders = (source,) if source else tuple(places)
    for folder in folders:
        found = sorted(folder.glob("*.mat"))
        if found:
            return found
    raise UserError(
        f"{' or '.join(map(str, folders))}: no .mat files. Unpack {archive} there, or name the "
        "folder with --source."
    )


def prepare_folder(
    root: Path, source: Path | None = None, fetch: bool = False, labels: str | None = None
) -> str:
    """classes.txt from the values or colours that the labels contain."""
    _no_download("folder", fetch)
    target = root / "classes.txt"
    if target.exists():
        names = find_classes(root, None).names
        return f"{target} is there already, with {len(names)} classes"
    if not folder_splits(root, labels is not None):
        raise no_layout(root)
    ids: set[int] = set()
    codes: set[int] = set()  # 24-bit colours
    files: set[Path] = set()
    problem = None
    for split in folder_splits(root, labels is not None):
        try:
            files |= {pair.label for pair in own.folder(root, split, labels).pairs}
        except UserError as error:  # a test set may have no labels
            problem = error
    if not files and problem is not None:
        raise problem
    for path in track(sorted(files), "labels", len(files)):
        values = raw_values(path)
        if values.ndim == 3:
            wide = values.astype(np.uint32)
            codes |= set(np.unique(wide[..., 0] << 16 | wide[..., 1] << 8 | wide[..., 2]).tolist())
        else:
            ids |= set(np.unique(values).tolist())
    if all(code % 0x010101 == 0 for code in codes):  # ids saved as RGB
        ids |= {code & 0xFF for code in codes}
        codes = set()
    if codes and ids:
        raise UserError(f"{root}: some labels are coloured and some hold ids. Make them all alike.")
    colours = [f"#{code:06x}" for code in sorted(codes)]
    binary = ids == {0, VOID}
    ids.discard(VOID)
    count = 2 if binary else len(colours) or max(ids, default=-1) + 1
    if len(colours) > MAX_CLASSES:
        raise UserError(
            f"{root}: the labels have {len(colours)} colours; at most {MAX_CLASSES} can be "
            "classes. Smoothed edges or lossy compression make such colours: export the labels "
            "again, as PNG and without smoothing, or write classes.txt by hand."
        )
    if not 1 <= count <= MAX_CLASSES:
        raise UserError(
            f"{root}: labels hold values up to {max(ids, default=VOID)}. Write classes.txt, "
            "and give a label map."
        )
    lines = [f"class {i} {colours[i]}" if colours else f"class {i}" for i in range(count)]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if binary:
        return (
            f"{count} classes written to {target}: the masks hold 0 and 255, so use them with "
            "--data.label_map 0:0,255:1 (255 alone is void); give the classes their names there"
        )
    text = f"{count} classes written to {target}; give them their names there"
    if colours:
        text += ". A colour that does not count, such as an outline: call it void, as the last line"
    return text


def _no_download(name: str, fetch: bool) -> None:
    if fetch:
        raise UserError(f"{name} cannot be downloaded for you: its licence or its host forbids it.")


def preparations() -> dict[str, Callable[[Path, Path | None, bool], str]]:
    return {
        "voc": prepare_voc,
        "pascal_context": prepare_pascal_context,
        "pascal_context_59": prepare_pascal_context,
        "coco_stuff": prepare_coco_stuff,
        "coco": prepare_coco,
        "folder": prepare_folder,
    }
