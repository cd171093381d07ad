"""The explorer of `hemnet app` around small models that answer at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import hemnet
from hemnet.app.answers import Answers
from hemnet.app.explore import Explorer
from hemnet.app.limits import Limits

CLASSES = ("background", "tree", "<b>road</b>", "sea")


def build(name: str = "hemnet", **options: Any) -> hemnet.Segmenter:
    torch.manual_seed(5)
    if name in ("hemnet", "emanet"):
        options = {"channels": 8, "bases": 5, "zero_init": False, **options}
    model = hemnet.create_model(name, 4, "test_resnet", 16, classes=CLASSES, **options)
    torch.nn.init.normal_(model.head.classifier[-1].weight, std=4)  # several classes an image
    return model.eval()


def explorer(name: str = "hemnet", **options: Any) -> Explorer:
    return Explorer(build(name, **options))


def answers(tmp_path: Path, name: str = "hemnet", **options: Any) -> Answers:
    return Answers(explorer(name, **options), Limits(side=200), tmp_path)
