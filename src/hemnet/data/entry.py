"""The catalog's entry of a data set that its owners distribute."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hemnet.data.dataset import Info, Pair
from hemnet.data.download import Archive
from hemnet.data.labels import Colour


@dataclass
class SplitFiles:
    """The pairs of a split, whether their files exist or not, and how their labels are encoded."""

    pairs: list[Pair]
    label_map: dict[int, int] | None = None  # value in the file → class; None: class ids already
    unpaired: list[str] = field(default_factory=list)  # messages on files without a partner
    fix: str = "Unpack the archive again."  # how to get missing files


@dataclass(frozen=True)
class Entry:
    """A data set of the catalog.

    Attributes:
        info: classes, display colours, official splits.
        find: (root, split) → the files of a split, in the owners' layout.
        prepare: (root, folder of raw labels or None) → report. Converts raw labels for `find`.
        archives: what may be downloaded, with a path that each brings.
        label_colours: of the classes in label files that store colours instead of ids.
    """

    info: Info
    find: Callable[[Path, str], SplitFiles]
    prepare: Callable[[Path, Path | None], str] | None = None
    archives: tuple[tuple[Archive, str], ...] = ()
    label_colours: tuple[Colour, ...] = ()


def pairs_by_id(ids: Iterable[str], images: Path, labels: Path) -> list[Pair]:
    """`images/ID.jpg` with `labels/ID.png`."""
    return [Pair(name, images / f"{name}.jpg", labels / f"{name}.png") for name in ids]
