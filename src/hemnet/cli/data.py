"""Check, prepare and look at data sets.

examples:
  hemnet data check voc --root VOCdevkit                 every split that is there
  hemnet data check folder --root mydata --json out.json
  hemnet data prepare voc --root data --download         VOC 2012 and SBD, about 3.5 GB
  hemnet data prepare coco_stuff --root cocostuff-10k-v1.1
  hemnet data prepare folder --root mydata               writes classes.txt
  hemnet data prepare labelme --root photos --out mydata     and coco-json, cvat
  hemnet data split folder --root mydata --val 0.2 --group '^(.*)_'    films stay whole
  hemnet data show scenes                                the built-in data set, drawn to a PNG
  hemnet data show camvid --root CamVid --split val --out sheet.png
  hemnet data show --config configs/folder.yaml --data.root mydata    as training will see it

data sets: {datasets}
(folder has images/ and labels/, list is a file of pairs, hf is of Hugging Face; scenes and recall
are generated and need no files)
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hemnet.cli.flag_names import with_flags
from hemnet.cli.shared_flags import DATA, add_data, given_data
from hemnet.errors import UserError
from hemnet.files import check_output, write_json

if TYPE_CHECKING:
    from hemnet.cli.parser import Parser
    from hemnet.data.check import Report
    from hemnet.data.dataset import SegmentationDataset

HELP = "check, prepare and look at data sets"
FIRST = 1_000_000  # pairs among which some are drawn
SHOWN = 10  # problems of a kind that are printed; --json has all
FORMATS = ("labelme", "coco-json", "cvat")  # annotations that `prepare` turns into a folder
SCENES_LOOKED_AT = 64  # of each split: they are all made by the same rules


def add_arguments(parser: Parser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    texts = {
        "check": "read every pair and report what is wrong",
        "prepare": "convert raw labels (and download where the licence allows)",
        "show": "draw a contact sheet, before and after augmentation",
        "split": "divide a folder into train, val and test, by lists; no file is moved",
    }
    subs = {
        name: actions.add_parser(name, help=text, description=text + ".")
        for name, text in texts.items()
    }
    for name, sub in subs.items():
        how: dict[str, Any] = {"nargs": "?"} if name == "show" else {}
        sub.add_argument("name", metavar="NAME", help="the data set, such as voc or folder", **how)
        add_data(
            sub,
            ("root", "labels") if name == "prepare" else DATA,
            short=True,
            root="its folder (for list: its file)",
            split="one split (default: check all, show the first)",
        )
        sub.old_flags = {"--partial": "--skip-missing"}
    subs["check"].add_argument("--workers", type=int, help="threads (default: one per core)")
    subs["check"].add_argument("--json", type=Path, metavar="FILE", help="write the report")
    prepare = subs["prepare"]
    prepare.add_argument(
        "--source", type=Path, help="where the raw labels are, if not below --root"
    )
    prepare.add_argument(
        "--out", type=Path, help="for annotations: the new folder (default: ROOT-prepared)"
    )
    prepare.add_argument(
        "--classes", help="for annotations: a file, or names with commas, in their order"
    )
    prepare.add_argument("--download", action="store_true", help="fetch what is missing first")
    split = subs["split"]
    split.add_argument("--val", type=float, default=0.2, help="share of the images (default: 0.2)")
    split.add_argument("--test", type=float, default=0.0, help="share of the images (default: 0)")
    split.add_argument(
        "--group",
        help="what stays together: folder, or a regular expression whose bracket is the group, "
        r"such as '^(.*)_\d+$' for films",
    )
    split.add_argument("--seed", type=int, default=0, help="another division (default: 0)")
    show = subs["show"]
    show.add_argument("--out", type=Path, help="PNG or JPEG file (default: NAME-SPLIT.png)")
    show.add_argument("--count", type=int, default=8, help="how many pairs (default: 8)")
    show.add_argument("--columns", dest="across", type=int, help="pairs beside each other")
    show.add_argument(
        "--tile", type=int, default=200, help="longest side of a picture (default: 200)"
    )
    show.add_argument("--no-augmentation", action="store_true", help="only the pairs as they are")
    show.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="of `hemnet train`, whose settings are flags here too: the first images of the "
        "training, just as the network will see them",
    )
    show.takes_settings, show.settings_after = True, "--config"
    show.add_argument("--crop", type=int, help="crop of the augmentation (default: 513)")
    show.add_argument(
        "--jitter", type=float, default=0.0, help="colour jitter, 0 to 1 (default: 0)"
    )
    show.add_argument("--seed", type=int, default=0, help="which pairs and which draws")


def run(args: argparse.Namespace) -> None:
    {"check": _check, "prepare": _prepare, "show": _show, "split": _split}[args.action](args)


def _open(args: argparse.Namespace, split: str, skip_missing: bool) -> SegmentationDataset:
    from hemnet.data.catalog import open_dataset

    return open_dataset(**given_data(args) | {"split": split, "skip_missing": skip_missing})


def _check(args: argparse.Namespace) -> None:
    from hemnet.data.catalog import GENERATED, list_splits
    from hemnet.data.check import check_datasets

    check_output(args.json)
    splits = [args.split] if args.split else list_splits(args.name, args.root, args.labels)
    if args.name in GENERATED and args.length is None:
        args.length = SCENES_LOOKED_AT
        print(
            f"{args.name}: images are generated, {args.length} of each split are drawn and looked "
            "at (--length N for more)."
        )
    # Missing files are part of the report, unless a part is what the user has.
    with _quiet():  # the report has the notes
        datasets = [_open(args, split, True) for split in splits]
    report = check_datasets(datasets, workers=args.workers)
    if args.skip_missing:
        report.problems = [p for p in report.problems if p.kind != "missing"]
    _print_report(report)
    if args.json:
        write_json(args.json, report.as_json())
    if report.problems:
        counts = ", ".join(f"{len(found)} {kind}" for kind, found in report.by_kind().items())
        hint = (
            " If a part is all you want: --skip-missing." if "missing" in report.by_kind() else ""
        )
        count = len(report.problems)
        noun = "problem" if count == 1 else "problems"
        raise UserError(f"{args.name}: {count} {noun} ({counts}).{hint}")
    print(f"{args.name}: nothing wrong.")


@contextmanager
def _quiet() -> Iterator[None]:
    log = logging.getLogger("hemnet")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _print_report(report: Report) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    for split, found in report.splits.items():
        official = "" if found.official is None else f" (official: {found.official})"
        console.print(
            f"\n[bold]{escape(f'{report.name} {split}')}[/]: {found.images} images{official}, "
            f"{_range(found.widths)} × {_range(found.heights)} pixels, "
            f"{found.void_share:.1%} void"
        )
        table = Table("class", "share of labelled pixels", "", "images", box=None, pad_edge=False)
        table.columns[2].justify = table.columns[3].justify = "right"
        greatest = max(found.pixel_share.values(), default=0) or 1
        for name, share in found.pixel_share.items():
            bar = _bar(share / greatest, blocks="utf" in console.encoding.lower())
            table.add_row(escape(name), bar, _percent(share), str(found.image_count[name]))
        console.print(table)
    for note in report.notes:
        text = escape(with_flags(note))
        console.print(f"[yellow]note[/] {text}", soft_wrap=True)
    for kind, problems in report.by_kind().items():
        console.print(f"\n[bold red]{kind}[/] ({len(problems)})")
        for problem in problems[:SHOWN]:
            text = f"  {problem.split}  {with_flags(problem.message)}"
            console.print(text, soft_wrap=True, markup=False)
        if len(problems) > SHOWN:
            console.print(f"  … and {len(problems) - SHOWN} more; --json FILE has all of them")


def _range(pair: tuple[int, int]) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}–{pair[1]}"


def _percent(share: float) -> str:
    return "–" if share == 0 else "<0.01%" if share < 1e-4 else f"{share:.2%}"


def _bar(share: float, *, blocks: bool, width: int = 30) -> str:
    if not blocks:  # a terminal without Unicode
        return "#" * round(share * width)
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _prepare(args: argparse.Namespace) -> None:
    from hemnet.data.catalog import prepare_dataset

    if args.name in FORMATS:
        if args.root is None:
            raise UserError("say where the images are: --root DIR")
        from hemnet.data.import_annotations import convert_annotations

        print(convert_annotations(args.name, args.root, args.source, args.out, args.classes))
        folder = args.out or f"{args.root.resolve().name}-prepared"
        print(f"next: hemnet data split folder --root {folder}")
        return
    for option in ("out", "classes"):
        if getattr(args, option) is not None:
            raise UserError(f"--{option} is for {', '.join(FORMATS)}.")
    report = prepare_dataset(
        args.name, args.root, source=args.source, labels=args.labels, download=args.download
    )
    print(with_flags(report))


def _show(args: argparse.Namespace) -> None:
    import numpy as np

    from hemnet.data.catalog import GENERATED, list_splits
    from hemnet.data.contact_sheet import draw_contact_sheet, save_sheet
    from hemnet.data.transforms import Augmentation

    for name, value, low, high in (
        ("count", args.count, 1, 200),
        ("tile", args.tile, 16, 2000),
        ("columns", args.across, 1, 200),
        ("seed", args.seed, 0, 2**63 - 1),
    ):
        if value is not None and not low <= value <= high:
            raise UserError(f"--{name} {str(value)[:30]}: expected {low} to {high}.")
    check_output(args.out, makes_folder=True)
    if args.config is not None:
        _show_training(args)
        return
    if args.name is None:
        raise UserError("say which data set: `hemnet data show NAME`, or --config FILE.")
    split = args.split or list_splits(args.name, args.root, args.labels)[0]
    dataset = _open(args, split, args.skip_missing)
    picks = np.random.default_rng(args.seed).permutation(min(len(dataset), FIRST))[: args.count]
    augmentation = None
    if not args.no_augmentation:
        # What is generated keeps its scale and all of its picture: a crop could cut off the lamp.
        generated = args.name in GENERATED
        scale = (1.0, 1.0) if generated else (0.5, 2.0)
        side = args.crop or (args.size or 128 if generated else 513)
        try:
            augmentation = Augmentation(crop=(side, side), scale=scale, jitter=args.jitter)
        except ValueError as error:
            raise UserError(str(error)) from None
    sheet = draw_contact_sheet(
        dataset,
        sorted(int(i) for i in picks),
        augmentation=augmentation,
        tile=args.tile,
        columns=args.across,
        seed=args.seed,
    )
    path = args.out or Path(f"{args.name}-{split}.png")
    save_sheet(sheet, path)
    print(f"{len(picks)} of {len(dataset)} pairs of {args.name} {split} drawn to {path}")


def _show_training(args: argparse.Namespace) -> None:
    """The first images of a training, in its order and with its augmentation."""
    from itertools import islice

    from torch import nn

    from hemnet.data.contact_sheet import draw_contact_sheet, save_sheet
    from hemnet.data.sampler import EndlessSampler
    from hemnet.training.config_parser import read_config
    from hemnet.training.setup import augmentation_of, open_split

    given = {"--root": args.root, "--split": args.split, "--label-map": args.label_map}
    wrong = [name for name, value in given.items() if value is not None]
    if wrong or args.name is not None:
        raise UserError(
            f"{wrong[0] if wrong else args.name} does not go with --config: the configuration "
            "says it. Change it there, or with a flag such as --data.root DIR."
        )
    config = read_config(args.config, args.settings)
    data, seed = config.data, config.run.seed
    dataset = open_split(data, data.split, data.length)
    keys = list(islice(EndlessSampler(len(dataset), seed=seed), args.count))
    look = augmentation_of(config, nn.Identity())
    sheet = draw_contact_sheet(
        dataset, keys, augmentation=look, tile=args.tile, columns=args.across, seed=seed
    )
    path = args.out or Path(f"{data.name}-{data.split}.png")
    save_sheet(sheet, path)
    print(
        f"the first {len(keys)} images of the training drawn to {path}: as read above, as the "
        f"network sees them below (crops of {data.crop[0]}×{data.crop[1]})"
    )


def _split(args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from hemnet.data.catalog import list_splits
    from hemnet.data.dataset import FileDataset
    from hemnet.data.folders import SPLITS
    from hemnet.data.split import stratified_split, write_splits

    if args.name != "folder" or args.root is None:
        raise UserError("`hemnet data split` divides a folder: hemnet data split folder --root DIR")
    if (args.root / SPLITS).exists():
        raise UserError(f"{args.root / SPLITS} exists already: remove it to divide anew.")
    present = list_splits("folder", args.root, args.labels)
    shares = {"train": 1 - args.val - args.test, "val": args.val, "test": args.test}
    shares = {part: share for part, share in shares.items() if share != 0}
    source = args.split or present[0]
    taken = [part for part in shares if part in present and part != source]
    if taken:
        raise UserError(
            f"{args.root} has {' and '.join(taken)} already. Leave out --{taken[0]}, with "
            f"--{taken[0]} 0, or move its images."
        )
    dataset = _open(args, source, args.skip_missing)
    assert isinstance(dataset, FileDataset)
    division = stratified_split(dataset, shares, group=args.group, seed=args.seed)
    written = write_splits(dataset, division, args.root)
    table = Table("class", box=None, pad_edge=False)
    for part in division.members:
        table.add_column(part, justify="right")
    for number, name in enumerate(dataset.info.classes):
        row = (_percent(int(n[number]) / max(1, int(n.sum()))) for n in division.pixels.values())
        table.add_row(escape(name), *row)
    console = Console(highlight=False)
    for path, (part, members) in zip(written, division.members.items(), strict=True):
        console.print(
            f"[bold]{part}[/]: {len(members)} images in {division.groups[part]} groups, "
            f"{escape(str(path))}",
            soft_wrap=True,
        )
    if division.duplicates:
        print(f"{division.duplicates} images are the same as another: they stay together.")
    console.print(table)
