"""Decode label files to class ids: palette, grey or coloured images of 8 or 16 bits.

Whatever a data set writes in its files, everything after this module sees one encoding: arrays of
uint8 with classes 0 … K-1 and `VOID` (255) for what no loss, no metric and no padding counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hemnet.errors import DataError, UserError
from hemnet.image_io import open_image

VOID = 255
MAX_CLASSES = 255  # ids 0 … 254; 255 is void

Colour = tuple[int, int, int]
Mask = NDArray[np.uint8]


@dataclass(frozen=True)
class LabelEncoding:
    """How the values in label files become class ids.

    Args:
        num_classes: their number.
        label_map: value in the file → class id or 255. None: values are class ids already.
        colours: of the classes, for files that store colours.
        void: other colours in them that do not count.
    """

    num_classes: int
    label_map: Mapping[int, int] | None = None
    colours: Sequence[Colour] = ()
    void: Sequence[Colour] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.num_classes <= MAX_CLASSES:
            raise UserError(
                f"{self.num_classes} classes: expected 1 to {MAX_CLASSES}, since labels are 8-bit "
                f"and {VOID} is void. Merge classes with a label map."
            )
        for value, target in (self.label_map or {}).items():
            if not 0 <= value <= 65535:
                raise UserError(f"label map {value}:{target}: file values are 0 to 65535.")
            if target != VOID and not 0 <= target < self.num_classes:
                raise UserError(
                    f"label map {value}:{target}: classes are 0 to {self.num_classes - 1}, "
                    f"and {VOID} is void."
                )

    @cached_property
    def table(self) -> NDArray[np.int16]:
        """The class id of every 16-bit value, -1 for unknown values. (65536,)"""
        table = np.full(65536, -1, np.int16)
        if self.label_map is None:
            table[: self.num_classes] = np.arange(self.num_classes)
        else:
            for value, target in self.label_map.items():
                table[value] = target
        # Void stays void unless the map gives 255 another meaning.
        if self.label_map is None or VOID not in self.label_map:
            table[VOID] = VOID
        return table

    @cached_property
    def colour_table(self) -> dict[int, int]:
        """24-bit colour → class id; black and VOC's void colour are void if no class has them."""
        table = {_VOC_VOID: VOID, 0: VOID}
        table |= {_code(colour): VOID for colour in self.void}
        return table | {_code(colour): index for index, colour in enumerate(self.colours)}


_VOC_VOID = 224 << 16 | 224 << 8 | 192


def _code(colour: Colour) -> int:
    """24 bits."""
    red, green, blue = colour
    return red << 16 | green << 8 | blue


def decode_values(
    values: NDArray[np.uint8] | NDArray[np.uint16], encoding: LabelEncoding
) -> tuple[Mask, dict[str, int]]:
    """Values (H, W) or colours (H, W, 3) → class ids (H, W), and the pixels of unknown values.

    Unknown values become void here, so that a check can go on counting; `read_label` refuses them.
    """
    if values.ndim == 3:
        mask, unknown_colours = _decode_colours(values, encoding)
        # Grey saved as RGB is a common accident of image editors: then the values are ids.
        if not (values == values[..., :1]).all() or (encoding.colours and not unknown_colours):
            return mask, unknown_colours
        values = values[..., 0]
    plain = encoding.label_map is None and values.dtype == np.uint8
    if plain and not ((values >= encoding.num_classes) & (values != VOID)).any():
        return np.array(values), {}  # the usual case, without a table
    ids = encoding.table[: 256 if values.dtype == np.uint8 else 65536].take(values)
    unknown = ids < 0
    if not unknown.any():
        return ids.astype(np.uint8), {}
    found, counts = np.unique(values[unknown], return_counts=True)
    ids[unknown] = VOID
    return ids.astype(np.uint8), {str(v): int(n) for v, n in zip(found, counts, strict=True)}


def read_label(source: Path | bytes, encoding: LabelEncoding, name: str | None = None) -> Mask:
    """The class ids in a label file, or in its content, (H, W) uint8 with 255 for void."""
    mask, unknown = decode_values(raw_values(source, name), encoding)
    if unknown:
        raise DataError(describe_unknown(name or source, unknown, encoding))
    return mask


def describe_unknown(name: object, unknown: Mapping[str, int], encoding: LabelEncoding) -> str:
    shown = ", ".join(list(unknown)[:8]) + (", …" if len(unknown) > 8 else "")
    if next(iter(unknown)).startswith("#"):
        first = next(iter(unknown))
        if not encoding.colours:
            return (
                f"{name}: the label has colours ({shown}), and the classes have none. Write one "
                f"behind each name in classes.txt, such as `road {first}`."
            )
        noun = "colour" if len(unknown) == 1 else "colours"
        return (
            f"{name}: {noun} {shown} without a class. Add a line for each to classes.txt: "
            f"`name {first}`, or as the last one `void {first}` if such pixels do not count."
        )
    if encoding.label_map is not None:
        first = next(iter(unknown))
        verb = "is" if len(unknown) == 1 else "are"
        return (
            f"{name}: {shown} {verb} missing from your label map, which has "
            f"{', '.join(map(str, encoding.label_map))}. Add it, such as {first}:255 for pixels "
            "that do not count."
        )
    count = encoding.num_classes
    return (
        f"{name}: label values {shown} are not classes; expected 0 to {count - 1} or {VOID}. If "
        f"they are classes, name them: the list has {count}, so the next line is the class of "
        f"value {count}. If not, give a label map, such as {next(iter(unknown))}:255."
    )


def raw_values(
    source: Path | bytes, name: str | None = None
) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """The values (H, W) in a label file, or its colours (H, W, 3)."""
    with open_image(source, name) as image:
        if image.mode in ("P", "L"):
            return np.asarray(image)
        if image.mode == "1":
            return np.asarray(image.convert("L")) // 255
        if image.mode in ("LA", "PA"):
            return np.asarray(image)[..., 0]
        if image.mode.startswith("I"):  # 16 bits, which Pillow may widen to 32
            values = np.asarray(image)
            if values.min() < 0 or values.max() > 65535:
                raise ValueError("label values beyond 16 bits")
            return values.astype(np.uint16)
        if image.mode in ("RGB", "RGBA"):
            return np.asarray(image)[..., :3]
        raise ValueError(f"a label of mode {image.mode}, not a palette, grey or RGB image")


def colour_codes(values: NDArray[np.integer]) -> NDArray[np.int64]:
    """(H, W, 3) colours → (H, W) 24-bit numbers."""
    wide = values.astype(np.int64)
    return wide[..., 0] << 16 | wide[..., 1] << 8 | wide[..., 2]


def _decode_colours(
    values: NDArray[np.integer], encoding: LabelEncoding
) -> tuple[Mask, dict[str, int]]:
    codes, inverse, counts = np.unique(
        colour_codes(values), return_inverse=True, return_counts=True
    )
    ids = np.array([encoding.colour_table.get(int(code), -1) for code in codes])
    unknown = {f"#{c:06x}": int(n) for c, n, i in zip(codes, counts, ids, strict=True) if i < 0}
    mask = np.where(ids < 0, VOID, ids).astype(np.uint8)[inverse].reshape(values.shape[:2])
    return mask, unknown
