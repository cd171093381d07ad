"""The recipes of CONTRIBUTING.md are followed as they stand."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import hemnet
from hemnet.data import catalog
from hemnet.em import mixtures
from hemnet.nn.heads import HEADS
from support import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def recipe(title: str) -> dict[str, Any]:
    """What the block below a heading defines."""
    found = re.search(rf"### {title}.*?```python\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(found[1], names)
    return names


def test_a_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mixtures.MIXTURES, "Poisson", recipe("Add a mixture")["Poisson"])
    unit = hemnet.HighwayEMAttention(8, bases=3, mixture="Poisson", zero_init=False)
    x = torch.rand(2, 8, 5, 7, requires_grad=True)
    unit(x).square().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_a_head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(HEADS, "global", recipe("Add a head")["GlobalHead"])
    model = hemnet.create_model("global", 3, "test_resnet", 16, channels=8).eval()
    images = torch.randn(1, 3, 33, 49)
    saved = hemnet.from_pretrained(model.save_pretrained(tmp_path))
    assert model(images).shape == (1, 3, 33, 49)
    assert torch.equal(saved(images), model(images))


def test_a_data_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(catalog.OFFICIAL, "roofs", recipe("Add a data set")["ROOFS"])
    for folder, suffix in (("images", "jpg"), ("masks", "png")):
        (tmp_path / "train" / folder).mkdir(parents=True)
        values = np.full((6, 8), 255, np.uint8)
        Image.fromarray(values).save(tmp_path / f"train/{folder}/a.{suffix}")
    _, mask, name = hemnet.open_dataset("roofs", tmp_path)[0]
    assert name == "a"
    assert (mask == 1).all()
    assert "roofs" in hemnet.list_datasets()
