"""Lists of classes and colours: packaged ones, and users' own."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from hemnet.data.labels import MAX_CLASSES, VOID, Colour
from hemnet.data.listing import read_lines
from hemnet.errors import UserError


class ClassList(NamedTuple):
    """Attributes:
    names: of the classes, in the order of their ids.
    colours: of the classes; empty where not every line has one.
    void: colours in label files that do not count.
    """

    names: tuple[str, ...]
    colours: tuple[Colour, ...] = ()
    void: tuple[Colour, ...] = ()


def colour_map(size: int) -> tuple[Colour, ...]:
    """PASCAL VOC's colour map: the bits of the id spread over the high bits of the channels."""
    colours = []
    for index in range(size):
        channels = [0, 0, 0]
        for bit in range(8):
            for channel in range(3):
                channels[channel] |= (index >> (3 * bit + channel) & 1) << (7 - bit)
        colours.append((channels[0], channels[1], channels[2]))
    return tuple(colours)


def packaged_text(name: str) -> str:
    content = (files("hemnet.data") / "lists" / name).read_bytes()
    return (gzip.decompress(content) if name.endswith(".gz") else content).decode()


@cache
def official_ids(name: str) -> dict[str, str]:
    """Image id → set, from `lists/NAME.txt.gz`; a line is `id set`."""
    return dict(line.split() for line in packaged_text(f"{name}.txt.gz").splitlines())


@cache
def raw_classes(name: str) -> dict[int, str]:
    """Id in the raw label files → class name in the order of our classes, from `lists/NAME.txt`."""
    lines = packaged_text(f"{name}.txt").splitlines()
    return {int(key): name for key, name in (line.split(maxsplit=1) for line in lines)}


def parse_classes(text: str) -> ClassList:
    """Names, and colours if every line has one, from lines `name` or `name #rrggbb`.

    Last lines `void #rrggbb` are no classes: pixels of these colours do not count.
    """
    names: list[str] = []
    colours: list[Colour] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        name, mark, code = line.rpartition(" #")
        if mark and len(code) == 6 and set(code.lower()) <= set("0123456789abcdef"):
            names.append(name.strip())
            colours.append((int(code[:2], 16), int(code[2:4], 16), int(code[4:], 16)))
        else:
            names.append(line)
    if len(colours) < len(names):
        return ClassList(tuple(names))
    count = len(names)
    while count and names[count - 1].lower() == "void":
        count -= 1
    return ClassList(tuple(names[:count]), tuple(colours[:count]), tuple(colours[count:]))


def find_classes(
    root: Path, classes: str | list[str] | None, labels: str | None = None
) -> ClassList:
    """Class names and colours from `classes`, or from `classes.txt` beside the data."""
    if isinstance(classes, list):
        return parse_classes("\n".join(classes))
    if classes is None:
        beside = (root if root.is_dir() else root.parent) / "classes.txt"
        if not beside.is_file():
            pattern = f" --data.labels '{labels}'" if labels else ""
            raise UserError(
                f"{beside}: no such file, and no classes were given. Write one class name per line "
                "(a colour may follow: `road #804080`), give `classes`, or find them in the "
                f"labels: hemnet data prepare folder --root {root}{pattern}"
            )
        return _checked(parse_classes("\n".join(read_lines(beside))), str(beside))
    if classes.isdecimal() and classes.isascii():
        if len(classes) > 3:
            raise UserError(f"classes: a number of {len(classes)} digits; at most {MAX_CLASSES}.")
        return _checked(ClassList(tuple(f"class {i}" for i in range(int(classes)))), classes)
    if "," in classes:
        return _checked(parse_classes(classes.replace(",", "\n")), classes)
    if _is_file(classes):
        return _checked(parse_classes("\n".join(read_lines(Path(classes)))), classes)
    raise UserError(
        f"classes {classes[:100]!r}: expected a file with a name per line, names separated by "
        "commas, or their number."
    )


def _checked(found: ClassList, source: str) -> ClassList:
    names, colours, void = found
    if not 1 <= len(names) <= MAX_CLASSES:
        raise UserError(f"{source}: {len(names)} classes; expected 1 to {MAX_CLASSES}.")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UserError(f"{source}: class names must differ; repeated: {', '.join(repeated)}.")
    if len({*colours, *void}) < len(colours) + len(void):
        raise UserError(f"{source}: two classes have the same colour.")
    return found


def parse_label_map(text: str) -> dict[int, int]:
    """`0:255,1:0,2:1`, or a file with one `value: class` per line; `void` is 255."""
    lines = read_lines(Path(text)) if _is_file(text) else text.replace(",", "\n").splitlines()
    mapping: dict[int, int] = {}
    for line in filter(None, (line.strip() for line in lines)):
        value, colon, target = (part.strip() for part in line.partition(":"))
        if not (colon and _is_value(value) and (_is_value(target) or target == "void")):
            raise UserError(
                f"label map {line[:100]!r}: expected VALUE:CLASS, such as 0:255,1:0 "
                "(or a file of lines)."
            )
        mapping[int(value)] = VOID if target == "void" else int(target)
    return mapping


def _is_value(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return False
