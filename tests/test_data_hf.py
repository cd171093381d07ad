"""Hugging Face data sets, saved to disk by the test itself."""

import sys

import numpy as np
import pytest
from PIL import Image

from hemnet import cli
from hemnet.data import check_datasets, list_splits, open_dataset
from hemnet.data.huggingface import find_columns
from hemnet.errors import DataError, UserError
from hemnet.training.config_parser import read_config
from support.tiny_data import ids


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'hemnet-torch\[hf\]'"):
        open_dataset("hf", tmp_path, classes="2")


class Features(dict):
    """Columns by name and kind, as `datasets` has them."""

    def __init__(self, **kinds):
        super().__init__({name: type(kind, (), {})() for name, kind in kinds.items()})


def test_columns_are_found_or_asked_for():
    assert find_columns(Features(image="Image", label="Image", id="Value"), None) == (
        "image",
        "label",
    )
    assert find_columns(Features(x="Image", annotation="Image"), None) == ("x", "annotation")
    assert find_columns(Features(image="Image", odd="Image"), None) == ("image", "odd")
    with pytest.raises(UserError, match=r"a \(Image\), b \(Image\).*`columns`"):
        find_columns(Features(a="Image", b="Image"), None)
    with pytest.raises(UserError, match="'id' is not an image column"):
        find_columns(Features(image="Image", id="Value"), ("image", "id"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    datasets = pytest.importorskip("datasets", reason="the extra `hf` is not installed")
    root = tmp_path_factory.mktemp("hf") / "saved"
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.Image(), "name": datasets.Value("string")}
    )

    def part(count, seed):
        rng = np.random.default_rng(seed)
        images = [
            Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)) for _ in range(count)
        ]
        labels = [Image.fromarray(ids(value=2, seed=seed + n)) for n in range(count)]
        names = [str(n) for n in range(count)]
        return datasets.Dataset.from_dict(
            {"image": images, "label": labels, "name": names}, features=features
        )

    datasets.disable_progress_bars()
    datasets.DatasetDict({"train": part(4, 0), "val": part(2, 9)}).save_to_disk(root)
    (root / "classes.txt").write_text("a\nb\nc\n")
    return root


def test_rows_are_read_like_files(saved):
    assert list_splits("hf", saved) == ["train", "val"]
    dataset = open_dataset("hf", saved, "train")
    assert len(dataset) == 4
    image, mask, name = dataset[1]
    assert image.shape == (3, 24, 32)
    assert (mask.numpy() == ids(value=2, seed=1)).all()
    assert name == "train-000001"
    assert check_datasets([dataset]).problems == []
    mapped = open_dataset("hf", saved, "val", classes="2", label_map={0: 255, 1: 0, 2: 1})
    assert set(mapped[0][1].unique().tolist()) == {0, 1, 255}
    few = open_dataset("hf", saved, "val", classes="2")
    with pytest.raises(DataError, match="row 0 of val, column label: label values 2"):
        few[0]
    assert [p.kind for p in check_datasets([few]).problems] == ["unreadable"] * 2
    with pytest.raises(UserError, match="no split 'test'; it has train, val"):
        open_dataset("hf", saved, "test")
    with pytest.raises(UserError, match="not a folder that"):
        open_dataset("hf", saved.parent, "train", classes="2")


def test_a_run_trains_on_it(saved, tmp_path):
    settings = {
        **{"data.name": "hf", "data.root": saved, "data.crop": "[33, 33]", "data.workers": 1},
        **{"model.backbone": "test_resnet", "model.output_stride": 16, "model.channels": 16},
        **{"optim.steps": 1, "optim.batch_size": 2, "run.tensorboard": "false"},
    }
    flags = [str(part) for k, v in settings.items() for part in (f"--{k}", v)]
    assert read_config(None, flags).data.name == "hf"
    config = tmp_path / "c.yaml"
    config.write_text("data: {name: hf}\n")
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "--config", str(config), "--out", str(tmp_path / "run"), *flags])
    assert end.value.code == 0
