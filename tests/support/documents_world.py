"""What the documents name, in small: data sets, photographs, runs and a model of the hub."""

from __future__ import annotations

import shutil
from pathlib import Path

from hemnet.data.class_lists import official_ids
from hemnet.training.config import TrainConfig
from hemnet.training.config_parser import read_config
from hemnet.training.loop import train
from support import ROOT
from support.documents import SMALL, SMALL_EM
from support.tiny_data import folder, ids, image, label

SIDES = (48, 64)


def make_world(root: Path) -> Path:
    """Data and photographs, and in `stand-ins/` what pages have from elsewhere."""
    shutil.copytree(ROOT / "configs", root / "configs")
    folder(root / "mydata", {"train": 4, "val": 2})
    for place in ("CamVid", "data/camvid"):
        for split, count in (("train", 4), ("val", 2)):
            for n in range(count):
                pair(root / place / split, root / place / f"{split}annot", f"{split}{n}", 10)
    for place in ("VOCdevkit", "data/VOCdevkit"):
        voc(root / place / "VOC2012")
    shutil.copytree(root / "VOCdevkit" / "VOC2012", root / "VOC2012")
    context = root / "data/pascal_context/VOCdevkit/VOC2010"
    lists = context / "ImageSets/Main"
    lists.mkdir(parents=True)
    for split, names in (("train", "2008_000002"), ("val", "2008_000003")):
        pair(context / "JPEGImages", context / "SegmentationClassContext", names, 59)
        (lists / f"{split}.txt").write_text(names + "\n")
    stuff = root / "data/cocostuff10k"
    numbers = {split: number for number, split in official_ids("cocostuff10k").items()}
    for number in numbers.values():
        pair(stuff / "images", stuff / "labels", f"COCO_train2014_{int(number):012d}", 182)
    coco = root / "data/coco"
    (coco / "annotations").mkdir(parents=True)
    for split in ("train2017", "val2017"):
        pair(coco / split, coco / "voc_labels" / split, "000000000009", 20)
    for name in ("photo", "street"):
        image(root / f"{name}.jpg", *SIDES)
    image(root / "mosaic.tif", 96, 128)
    for n in range(2):
        image(root / "photos" / f"{n}.jpg", *SIDES, seed=n)
        image(root / "more" / "below" / f"{n}.tif", *SIDES, seed=n)
        image(root / "more" / f"{n}.tif", *SIDES, seed=n)
    stand_ins(root)
    return root


def pair(images: Path, labels: Path, name: str, largest: int) -> None:
    seed = sum(map(ord, name))  # no two of a data set alike
    image(images / f"{name}.jpg", *SIDES, seed=seed)
    label(labels / f"{name}.png", ids(*SIDES, value=largest, seed=seed))


def voc(base: Path) -> None:
    names = [f"2007_{n:06}" for n in range(6)]
    for name in names:
        pair(base / "JPEGImages", base / "SegmentationClassAug", name, 20)
    lists = base / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    parts = {"train": names[:4], "trainaug": names[:4], "val": names[4:], "test": names[4:]}
    for split, chosen in (parts | {"trainval": names}).items():
        (lists / f"{split}.txt").write_text("\n".join(chosen) + "\n")


def stand_ins(root: Path) -> None:
    """Trained runs for pages that begin with one."""
    for name, data in (("camvid", "CamVid"), ("voc", "VOCdevkit")):
        run = root / "stand-ins" / "runs" / name
        train(tiny(name, root / data), run, quiet=True)
        text = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(text.replace(str(root / data), data))
    shutil.copytree(root / "stand-ins/runs/voc/model", root / "stand-ins/user/model")
    shutil.copytree(root / "stand-ins/runs/voc", root / "stand-ins/runs/voc_trainval")


def tiny(name: str, root: Path) -> TrainConfig:
    settings = SMALL | SMALL_EM | {"data.name": name, "data.root": str(root)}
    return read_config(None, [part for k, v in settings.items() for part in (f"--{k}", v)])
