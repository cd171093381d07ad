"""Label files into class ids: palette, grey or coloured images of 8 or 16 bits.

Whatever a data set writes in its files, everything after this module sees one coding: an array of
uint8 with classes 0 … K-1 and `VOID` (255) for what no loss, no metric and no padding counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hemnet.errors import UserError
from hemnet.image_io import open_image

VOID = 255
MAX_CLASSES = 255  # ids 0 … 254; 255 is void

Colour = tuple[int, int, int]
Mask = NDArray[np.uint8]


class DataError(UserError):
    """A file of a data set cannot be used; the message names it and says what to do."""


@dataclass(frozen=True)
class Coding:
    """How the values in label files become class ids.

    label_map: value in the file → class id or 255. None: values are class ids already.
    palette: the colours of the classes, needed only for files that store colours.
    void: other colours in them that do not count.
    """

    num_classes: int
    label_map: Mapping[int, int] | None = None
    palette: Sequence[Colour] = ()
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
        """For every 16-bit value its class id, or -1 where the value means nothing. (65536,)"""
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
    def colours(self) -> dict[int, int]:
        """24-bit colour → class id; black and VOC's void colour are void if no class has them."""
        colours = {_VOC_VOID: VOID, 0: VOID}
        colours |= {_code(colour): VOID for colour in self.void}
        return colours | {_code(colour): index for index, colour in enumerate(self.palette)}


_VOC_VOID = 224 << 16 | 224 << 8 | 192


def _code(colour: Colour) -> int:
    """24 bits."""
    red, green, blue = colour
    return red << 16 | green << 8 | blue


def decode(path: Path, coding: Coding) -> tuple[Mask, dict[str, int]]:
    """Read a label file: its class ids (H, W), and how many pixels each unknown value covers.

    Unknown values become void here, so that `check` can go on counting; `read_label` refuses them.
    """
    return decode_values(raw_values(path), coding)


def decode_values(
    values: NDArray[np.uint8] | NDArray[np.uint16], coding: Coding
) -> tuple[Mask, dict[str, int]]:
    """Values (H, W) or colours (H, W, 3), as `decode` has them from a file."""
    if values.ndim == 3:
        mask, unknown_colours = _decode_colours(values, coding)
        grey = bool((values == values[..., :1]).all())
        # Grey saved as RGB is a common accident of image editors: then the values are ids.
        if not grey or (coding.palette and not unknown_colours):
            return mask, unknown_colours
        values = values[..., 0]
    plain = coding.label_map is None and values.dtype == np.uint8
    if plain and not ((values >= coding.num_classes) & (values != VOID)).any():
        return np.array(values), {}  # the usual case, without a table
    ids = coding.table[: 256 if values.dtype == np.uint8 else 65536].take(values)
    unknown = ids < 0
    if not unknown.any():
        return ids.astype(np.uint8), {}
    found, counts = np.unique(values[unknown], return_counts=True)
    ids[unknown] = VOID
    return ids.astype(np.uint8), {str(v): int(n) for v, n in zip(found, counts, strict=True)}


def read_label(path: Path, coding: Coding) -> Mask:
    """The class ids in a label file, (H, W) uint8 with 255 for void."""
    mask, unknown = decode(path, coding)
    if unknown:
        raise DataError(describe_unknown(path, unknown, coding))
    return mask


def describe_unknown(path: Path, unknown: Mapping[str, int], coding: Coding) -> str:
    shown = ", ".join(list(unknown)[:8]) + (", …" if len(unknown) > 8 else "")
    if next(iter(unknown)).startswith("#"):
        first = next(iter(unknown))
        if not coding.palette:
            return (
                f"{path}: the label has colours ({shown}), and the classes have none. Write one "
                f"behind each name in classes.txt, such as `road {first}`."
            )
        noun = "colour" if len(unknown) == 1 else "colours"
        return (
            f"{path}: {noun} {shown} without a class. Add a line for each to classes.txt: "
            f"`name {first}`, or as the last one `void {first}` if such pixels do not count."
        )
    if coding.label_map is not None:
        first = next(iter(unknown))
        verb = "is" if len(unknown) == 1 else "are"
        return (
            f"{path}: {shown} {verb} missing from your label map, which has "
            f"{', '.join(map(str, coding.label_map))}. Add it, such as {first}:255 for pixels that "
            "do not count."
        )
    count = coding.num_classes
    return (
        f"{path}: label values {shown} are not classes; expected 0 to {count - 1} or {VOID}. If "
        f"they are classes, name them: the list has {count}, so the next line is the class of "
        f"value {count}. If not, give a label map, such as {next(iter(unknown))}:255."
    )


def raw_values(path: Path) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """Raw values (H, W), or colours (H, W, 3)."""
    try:
        with open_image(path) as image:
            return label_values(image, str(path))
    except FileNotFoundError:
        raise DataError(f"{path}: no such label file.") from None
    except (DataError, MemoryError):
        raise
    except Exception as error:  # decoders raise whatever a damaged file makes them stumble over
        raise unreadable(path, error) from None


def label_values(image: Image.Image, name: str) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """The values or colours of an opened label image."""
    if image.mode in ("P", "L"):
        return np.asarray(image)
    if image.mode == "1":
        return np.asarray(image.convert("L")) // 255
    if image.mode in ("LA", "PA"):
        return np.asarray(image)[..., 0]
    if image.mode.startswith("I"):  # 16 bits, which Pillow may widen to 32
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise DataError(f"{name}: label values beyond 16 bits; expected 0 to 65535.")
        return values.astype(np.uint16)
    if image.mode in ("RGB", "RGBA"):
        return np.asarray(image)[..., :3]
    raise DataError(f"{name}: a label of mode {image.mode}; expected a palette, grey or RGB image.")


def unreadable(path: Path, error: Exception) -> DataError:
    reason = str(error) or type(error).__name__
    return DataError(f"{path}: cannot be read as an image ({reason}). Restore the file.")


def _decode_colours(values: NDArray[np.integer], coding: Coding) -> tuple[Mask, dict[str, int]]:
    wide = values.astype(np.uint32)
    codes, inverse, counts = np.unique(
        wide[..., 0] << 16 | wide[..., 1] << 8 | wide[..., 2],
        return_inverse=True,
        return_counts=True,
    )
    ids = np.array([coding.colours.get(int(code), -1) for code in codes])
    unknown = {f"#{c:06x}": int(n) for c, n, i in zip(codes, counts, ids, strict=True) if i < 0}
    mask = np.where(ids < 0, VOID, ids).astype(np.uint8)[inverse].reshape(values.shape[:2])
    return mask, unknown
