"""Split a folder into training, validation and test sets, by groups and stratified by class.

A split is a list of pairs in `splits/NAME.txt`, which the `folder` reader takes before it looks at
folders. No file is moved.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hemnet.data.counts import count_values, file_digest, read_all
from hemnet.data.dataset import FileDataset
from hemnet.data.folders import SPLITS
from hemnet.errors import UserError
from hemnet.files import write_text


@dataclass
class StratifiedSplit:
    """Which image is in which part, and the pixels of every class there."""

    members: dict[str, list[int]]
    groups: dict[str, int]  # number of groups in each part
    pixels: dict[str, NDArray[np.int64]]
    duplicates: int  # images that are the same as another


def stratified_split(
    dataset: FileDataset, shares: Mapping[str, float], *, group: str | None = None, seed: int = 0
) -> StratifiedSplit:
    """Split the images of a data set; the same arguments give the same split.

    Args:
        dataset: a folder or a list.
        shares: of the images, by part; they add up to 1.
        group: what must stay together: "folder", or a regular expression whose first bracket is
            the group, searched in an image's id. Images with the same content always do.
        seed: of random choices.
    """
    if any(share <= 0 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-6:
        text = ", ".join(f"{name} {share:g}" for name, share in shares.items())
        raise UserError(f"shares of {text}: expected numbers above 0 that leave room for train.")
    # By name, whatever the order of the files on this disk.
    order = sorted(range(len(dataset)), key=dataset.id)
    seen = list(read_all(partial(_read_pair, dataset), order, "reading"))
    first: dict[bytes, str] = {}
    clusters: dict[str, str] = {}  # group → the one that it was joined to

    def root(name: str) -> str:
        while clusters.setdefault(name, name) != name:
            name = clusters[name]
        return name

    names = [_group(dataset.id(index), group) for index in order]
    for name, (digest, _) in zip(names, seen, strict=True):
        clusters[root(name)] = root(first.setdefault(digest, name))
    members: dict[str, list[int]] = defaultdict(list)
    for position, name in enumerate(names):
        members[root(name)].append(position)
    if len(members) < len(shares):
        raise UserError(
            f"{len(order)} images in {len(members)} groups cannot be divided into {len(shares)} "
            f"parts ({', '.join(shares)}). Take a finer `group`, or none."
        )
    counts = np.stack([pixels for _, pixels in seen])  # images, classes
    chosen = _assign([np.array(found) for found in members.values()], counts > 0, shares, seed)
    result = StratifiedSplit({}, {}, {}, len(seen) - len(first))
    for part in shares:
        mine = [g for g, name in zip(members.values(), chosen, strict=True) if name == part]
        places = sorted(position for found in mine for position in found)
        result.members[part] = [order[position] for position in places]
        result.groups[part] = len(mine)
        result.pixels[part] = counts[places].sum(0)
    return result


def _read_pair(dataset: FileDataset, index: int) -> tuple[bytes, NDArray[np.int64]]:
    pixels = count_values(dataset.labels(index))[: dataset.num_classes]
    return file_digest(dataset.pairs[index].image), pixels


def _group(name: str, group: str | None) -> str:
    if group is None:
        return name
    if group == "folder":
        return name.rpartition("/")[0]
    try:
        pattern = re.compile(group)
    except re.error as error:
        raise UserError(f"group {group!r} is not a regular expression: {error}.") from None
    if pattern.groups < 1:
        raise UserError(
            f"group {group!r}: put brackets around what images of a group have in common, such "
            r"as '^(.*)_\d+$', or say `folder`."
        )
    found = pattern.search(name)
    if found is None or found[1] is None:
        raise UserError(f"group {group!r} does not match the image {name!r}.")
    return found[1]


def _assign(
    groups: Sequence[NDArray[np.int64]],
    present: NDArray[np.bool_],
    shares: Mapping[str, float],
    seed: int,
) -> list[str]:
    """The part of each group: iterative stratification (Sechidis et al. 2011), over groups.

    The rarest class is dealt out first, each group to the part that lacks most of it.
    """
    rng = np.random.default_rng(seed)
    parts = list(shares)
    weights = np.array([shares[part] for part in parts])
    has = np.stack([present[g].sum(0) for g in groups])  # groups, classes: images with the class
    sizes = np.array([len(g) for g in groups])
    wanted = weights[:, None] * has.sum(0)  # parts, classes
    room = weights * sizes.sum()
    left = rng.permutation(len(groups)).tolist()
    chosen = [-1] * len(groups)
    while left:
        remaining = has[left].sum(0)
        classes = np.flatnonzero(remaining)
        rare = int(classes[np.argmin(remaining[classes])]) if len(classes) else None
        holders = left if rare is None else [g for g in left if has[g, rare]]
        # Large groups first: small ones can even out what they leave.
        group = max(holders, key=lambda g: (has[g, rare] if rare is not None else 0, sizes[g]))
        need = (
            np.zeros(len(parts)) if rare is None else wanted[:, rare] / max(1, has[:, rare].sum())
        )
        open_parts = [p for p in range(len(parts)) if p not in chosen]
        # No part may stay empty: the last groups go to those that have none.
        choices = open_parts if len(left) <= len(open_parts) else range(len(parts))
        best = max(choices, key=lambda p: (round(float(need[p]), 9), room[p] / sizes.sum()))
        chosen[group] = best
        wanted[best] -= has[group]
        room[best] -= sizes[group]
        left.remove(group)
    return [parts[part] for part in chosen]


def write_splits(dataset: FileDataset, division: StratifiedSplit, root: Path) -> list[Path]:
    """`splits/NAME.txt` below the folder: a line for every pair, paths relative to the file."""
    folder = root / SPLITS
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for part, members in division.members.items():
        lines = []
        for index in members:
            pair = dataset.pairs[index]
            places = [Path(os.path.relpath(p, folder)).as_posix() for p in (pair.image, pair.label)]
            lines.append("\t".join(places))
        path = folder / f"{part}.txt"
        write_text(path, "\n".join(lines) + "\n")
        written.append(path)
    return written
