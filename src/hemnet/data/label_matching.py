"""Match labels to images by name, and explain why none match."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hemnet.data.dataset import Pair
from hemnet.data.listing import IMAGE_EXTENSIONS, LABEL_EXTENSIONS, files_under
from hemnet.errors import UserError

LOSSY = (".jpg", ".jpeg", ".webp")
LOOKED_INTO = 1000  # folders below one that may be anything, such as /
OTHER = (".npy", ".npz", ".mat", ".json", ".xml", ".txt", ".csv")


@dataclass(frozen=True)
class Pattern:
    """Where the label of an image lies, such as `{stem}_mask.png`, `masks/{stem}.png` or `masks`.

    `{stem}` is the image's name without its extension, `{path}` its path below the images' folder.
    A pattern without either is a folder whose labels have the names of the images.
    """

    text: str

    def __post_init__(self) -> None:
        rest = self.text.replace("{stem}", "").replace("{path}", "")
        if not self.text.strip() or "{" in rest or "}" in rest or "*" in rest:
            raise UserError(
                f"labels {self.text!r}: expected a file name with {{stem}} in the place of "
                "the image's name, such as {stem}_mask.png or masks/{stem}.png, or a folder."
            )
        if self.text.lower().endswith(LOSSY):
            raise UserError(f"labels {self.text!r}: {_lossy(self.text)}")

    @property
    def is_folder(self) -> bool:
        return "{" not in self.text

    def label(self, image: Path, images: Path, root: Path, labels: Path | None) -> Path | None:
        """The label of an image below `images`, or None. `labels` is the folder of labels."""
        below = image.relative_to(images)
        if self.is_folder:
            names = [f"{self.text}/{image.stem}{end}" for end in LABEL_EXTENSIONS]
        else:
            path = below.with_suffix("").as_posix()
            names = [self.text.replace("{stem}", image.stem).replace("{path}", path)]
        for name in names:
            folder, _, file = name.rpartition("/")
            inside = images.name  # of the split, where the folders are images/SPLIT and masks/SPLIT
            places = [
                *([labels / below.parent, labels] if labels and not folder else []),
                *(root / folder / inside / below.parent, root / folder / inside),
                *(root / folder / below.parent, image.parent / folder, root / folder),
            ]
            for place in places:
                found = place / file
                if found != image and found.is_file():
                    return found
        return None


def match(
    pattern: Pattern, root: Path, images: Path, labels: Path | None
) -> tuple[list[Pair], list[str]]:
    """The pairs of the images below a folder, and messages on unpaired images."""
    files = files_under(images, IMAGE_EXTENSIONS)
    found = {path: pattern.label(path, images, root, labels) for path in files}
    taken = {os.path.realpath(label) for label in found.values() if label is not None}
    pairs = [
        Pair(path.relative_to(images).with_suffix("").as_posix(), path, label)
        for path, label in found.items()
        if label is not None
    ]
    # Where labels lie among the images, they are not images without a label.
    alone = [p for p, label in found.items() if label is None and os.path.realpath(p) not in taken]
    lost = [f"{path}: no label for it by the pattern {pattern.text}" for path in alone]
    if not pairs:
        shown = f" (such as {files[0].name})" if files else ""
        raise UserError(
            f"{images}: {len(files)} images{shown}, and none has a label by the pattern "
            f"{pattern.text!r}. {_seen(images if labels is None else labels)}"
        )
    return pairs, lost


def no_match(images: Path, labels: Path) -> UserError:
    """The error where no image has a label of its name: what was found, and the pattern to use."""
    pictures = files_under(images, IMAGE_EXTENSIONS)
    if not pictures:
        others = Counter(p.suffix.lower() for p in images.rglob("*") if p.is_file())
        found = ", ".join(f"{count} × {end or 'no extension'}" for end, count in others.items())
        return UserError(
            f"{images}: no images ({found or 'it is empty'}). Images end in "
            f"{', '.join(IMAGE_EXTENSIONS)}."
        )
    marked = files_under(labels, LABEL_EXTENSIONS)
    if not marked:
        return UserError(f"{labels}: no labels for the {len(pictures)} images. {_seen(labels)}")
    image, label = pictures[0], _closest(pictures[0], marked)
    text = (
        f"{labels}: none of the {len(marked)} labels has the name of one of the {len(pictures)} "
        f"images in {images}: {image.name} needs the label {image.stem}.png; the closest is "
        f"{label.name}."
    )
    pattern = guess(pictures, marked)
    if pattern is not None:
        return UserError(f"{text} If they belong together: `labels='{pattern}'`.")
    return UserError(
        f"{text} Rename them, or give the pattern of their names: `labels='{{stem}}_mask.png'`."
    )


def no_layout(root: Path) -> UserError:
    """The error for a folder without images/: what it holds, and the pattern to use."""
    pictures = files_under(root, IMAGE_EXTENSIONS, LOOKED_INTO)
    text = (
        f"{root}: no images/ folder. Expected images/ and labels/ (or masks/, annotations/) here, "
        "or in a folder per split."
    )
    if not pictures:
        return UserError(f"{text} It holds no image.")
    marks = [path for path in pictures if path.suffix.lower() in LABEL_EXTENSIONS]
    stems = {path.stem for path in pictures}
    longer = [p for p in marks if any(part in stems for part in _parts(p.stem) if part != p.stem)]
    pattern = guess([p for p in pictures if p not in longer], longer) if longer else None
    if pattern is not None:
        image = next(p for p in pictures if p.stem in longer[0].stem and p != longer[0])
        return UserError(
            f"{text} It holds {len(pictures)} images. If {longer[0].name} is the label of "
            f"{image.name}: `labels='{pattern}'`"
        )
    return UserError(
        f"{text} It holds {len(pictures)} images, such as {pictures[0].name}. Where labels lie "
        "beside their images, give the pattern of their names: `labels='{stem}_mask.png'`"
    )


def guess(images: Sequence[Path], labels: Sequence[Path]) -> str | None:
    """The pattern that most labels follow, such as `{stem}_mask.png`."""
    stems = {image.stem for image in images}
    votes: Counter[str] = Counter()
    for label in labels:
        # Of the names inside a label's name the longest is meant: 1_10_mask is of 1_10, not 1.
        inside = [stem for stem in _parts(label.stem) if stem in stems]
        if inside:
            before, _, after = label.stem.partition(max(inside, key=len))
            votes[f"{before}{{stem}}{after}{label.suffix}"] += 1
    if not votes:
        return None
    pattern, count = votes.most_common(1)[0]
    return pattern if 2 * count > min(len(images), len(labels)) else None


def _parts(name: str) -> Iterable[str]:
    return (name[a:b] for a in range(len(name)) for b in range(a + 1, len(name) + 1))


def _closest(image: Path, labels: Sequence[Path]) -> Path:
    alike = difflib.get_close_matches(image.stem, [p.stem for p in labels[:1000]], 1, cutoff=0)
    return next(path for path in labels if path.stem == alike[0])


def _seen(labels: Path) -> str:
    """Describe the files in a folder of labels."""
    found = [p for p in labels.rglob("*") if p.is_file() and not p.name.startswith(".")]
    lossy = [p for p in found if p.suffix.lower() in LOSSY]
    other = [p for p in found if p.suffix.lower() in OTHER]
    good = [p for p in found if p.suffix.lower() in LABEL_EXTENSIONS]
    if good:
        return f"There are {len(good)} label files, such as {good[0].name}."
    if lossy:
        return f"There are {len(lossy)} files such as {lossy[0].name}: {_lossy(lossy[0].name)}"
    if other:
        kind = other[0].suffix
        return (
            f"There are {len(other)} files such as {other[0].name}: labels are pictures. Save each "
            f"{kind} as PNG, "
            + (
                "with PIL: Image.fromarray(array.astype('uint8')).save('name.png')."
                if kind in (".npy", ".npz", ".mat")
                else "or convert annotations: hemnet data prepare labelme (or coco-json, cvat)."
            )
        )
    return f"Labels end in {', '.join(LABEL_EXTENSIONS)}."


def _lossy(name: str) -> str:
    kind = Path(name).suffix.lstrip(".").upper()
    return (
        f"{kind} changes pixels when it compresses, so the classes in it are no longer those that "
        "were drawn. Export the labels as PNG."
    )
