"""Write classes.txt for a user's folder, from the values or colours in its labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hemnet.data.class_lists import find_classes
from hemnet.data.folders import find_pairs, folder_splits
from hemnet.data.label_matching import no_layout
from hemnet.data.labels import MAX_CLASSES, VOID, colour_codes, raw_values
from hemnet.errors import UserError
from hemnet.files import write_text
from hemnet.progress import track


def write_classes(root: Path, labels: str | None = None) -> str:
    target = root / "classes.txt"
    if target.exists():
        names = find_classes(root, None).names
        return f"{target} is there already, with {len(names)} classes"
    ids, colours = _values(root, labels)
    if colours and ids:
        raise UserError(f"{root}: some labels are coloured and some hold ids. Make them all alike.")
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
    ends = [f" #{code:06x}" for code in sorted(colours)] or [""] * count
    write_text(target, "".join(f"class {i}{end}\n" for i, end in enumerate(ends)))
    report = f"{count} classes written to {target}"
    if binary:
        return (
            f"{report}: the masks hold 0 and 255, so use them with `label_map=0:0,255:1` (255 "
            "alone is void); give the classes their names there"
        )
    report += "; give them their names there"
    if colours:
        report += ". A colour that does not count, such as an outline: call it void, on a last line"
    return report


def _values(root: Path, labels: str | None) -> tuple[set[int], set[int]]:
    """The ids and the colours, as 24-bit numbers, in the label files."""
    splits = folder_splits(root, labels is not None)
    if not splits:
        raise no_layout(root)
    files: set[Path] = set()
    problem = None
    for split in splits:
        try:
            files |= {pair.label for pair in find_pairs(root, split, labels).pairs}
        except UserError as error:  # a test set may have no labels
            problem = error
    if not files and problem is not None:
        raise problem
    ids: set[int] = set()
    colours: set[int] = set()
    for path in track(sorted(files), "labels", len(files)):
        values = raw_values(path)
        if values.ndim == 3:
            colours |= set(np.unique(colour_codes(values)).tolist())
        else:
            ids |= set(np.unique(values).tolist())
    if all(code % 0x010101 == 0 for code in colours):  # ids saved as RGB
        ids |= {code & 0xFF for code in colours}
        colours = set()
    return ids, colours
