"""`evaluate` and `hemnet evaluate`: every image once, on one process or several."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import hemnet
from hemnet.data import Scenes, open_dataset
from hemnet.errors import UserError
from hemnet.inference.evaluate import evaluate
from hemnet.inference.open_model import load_model
from hemnet.inference.options import InferenceOptions
from support import tiny_data
from support.command_line import run

SIZE = 48


class Oracle(nn.Module):
    """Knows the answers and gives them in turn; all wrong for class `wrong`."""

    def __init__(self, dataset: Scenes, wrong: int = -1) -> None:
        super().__init__()
        self.dataset, self.wrong, self.turn = dataset, wrong, 0
        self.dropout = nn.Dropout()

    def forward(self, images: Tensor) -> Tensor:
        masks = []
        for _ in images:
            mask = self.dataset[self.turn][1].clamp(max=10)
            masks.append(torch.where(mask == self.wrong, (mask + 1) % 11, mask))
            self.turn += 1
        return nn.functional.one_hot(torch.stack(masks), 11).movedim(-1, 1).float()


def model(**options: object) -> hemnet.Segmenter:
    info = Scenes.info
    return hemnet.create_model(
        "hemnet", 11, "test_resnet", 16, channels=8, bases=4, gain=0.3,
        classes=info.classes, palette=info.palette, **options,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("batch", [1, 3])
def test_an_oracle_is_right_everywhere(batch: int) -> None:
    dataset = Scenes("val", size=SIZE, length=7)
    found = evaluate(Oracle(dataset), dataset, InferenceOptions(batch_size=batch))
    assert found.miou == found.pixel_accuracy == 100
    labelled = sum(int((dataset[i][1] != 255).sum()) for i in range(7))
    assert int(found.confusion.sum()) == labelled
    assert [image.id for image in found.images] == [dataset.id(i) for i in range(7)]


def test_an_oracle_blind_for_one_class() -> None:
    dataset = Scenes("val", size=SIZE, length=7)
    found = evaluate(Oracle(dataset, wrong=4), dataset)
    assert found.iou["lamp"] == 0
    assert 0 < found.miou < 100
    assert all(image.miou < 100 for image in found.images)


def test_images_of_different_sizes_in_one_batch(tmp_path: Path) -> None:
    root = tiny_data.folder(tmp_path, {"val": 5})
    tiny_data.image(root / "images/val/2.jpg", 30, 20, seed=9)
    tiny_data.label(root / "labels/val/2.png", tiny_data.ids(30, 20, 2, seed=9))
    dataset = open_dataset("folder", root, "val")
    network = hemnet.create_model("hemnet", 3, "test_resnet", 16, channels=8, gain=0.3)
    alone = evaluate(network, dataset)
    assert torch.equal(
        evaluate(network, dataset, InferenceOptions(batch_size=3)).confusion, alone.confusion
    )


def test_nothing_of_the_callers_changes() -> None:
    network, dataset = model().train(), Scenes("val", size=SIZE, length=2)
    network.head.mix.eval()
    modes = [module.training for module in network.modules()]
    state = {key: value.clone() for key, value in network.state_dict().items()}
    draws = torch.get_rng_state()
    evaluate(network, dataset, InferenceOptions(iterations=5))
    assert [module.training for module in network.modules()] == modes
    assert torch.equal(torch.get_rng_state(), draws)
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())


def test_the_models_own_normalisation_is_used() -> None:
    seen: list[Tensor] = []
    network = model(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    dataset = Scenes("val", size=SIZE, length=1)
    evaluate(network, dataset)
    torch.testing.assert_close(seen[0][0], dataset[0][0] / 255)


def test_other_number_of_classes() -> None:
    network = hemnet.create_model("fcn", 4, "test_resnet", 16)
    with pytest.raises(UserError, match="knows 4 classes, but scenes has 11"):
        evaluate(network, Scenes("val", size=SIZE, length=1))


def test_nothing_labelled(tmp_path: Path) -> None:
    root = tiny_data.folder(tmp_path, {"val": 1})
    tiny_data.label(root / "labels/val/0.png", tiny_data.ids(value=255))
    network = hemnet.create_model("fcn", 3, "test_resnet", 16)
    with pytest.raises(UserError, match="no pixel is labelled"):
        evaluate(network, open_dataset("folder", root, "val"))


# Several processes, for real.

WORKER = """
import gc, sys, torch, torch.distributed.nn  # the last before a group: it would keep it
from pathlib import Path
from torch import distributed
from hemnet.data import open_dataset
from hemnet.inference.evaluate import evaluate
from hemnet.inference.open_model import load_model
from hemnet.errors import UserError
torch.set_num_threads(1)
distributed.init_process_group("gloo")
place, rank = Path(sys.argv[1]), distributed.get_rank()
model = load_model(place / "model")
wrapped = torch.nn.parallel.DistributedDataParallel(load_model(place / "model"))
for name, network in {"five": model, "one": wrapped, "broken": model}.items():
    try:
        found = evaluate(network, open_dataset("folder", place / name, "val"))
        result = found.confusion, [image.id for image in found.images]
    except UserError as error:
        result = str(error)
    torch.save(result, place / f"{name}-{rank}.pt")
distributed.barrier()  # neither hangs up while the other still listens
del network, wrapped
gc.collect()  # what holds the group: its threads may abort a process that ends before them
distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes found: shares of 3 and 2 images, of 1 and none, and a broken file."""
    place = tmp_path_factory.mktemp("together")
    (place / "worker.py").write_text(WORKER)
    network = hemnet.create_model("hemnet", 3, "test_resnet", 16, channels=8, gain=0.3, bases=4)
    network.save_pretrained(place / "model")
    for name, count in {"five": 5, "one": 1, "broken": 4}.items():
        tiny_data.folder(place / name, {"val": count})
    (place / "broken/images/val/3.jpg").write_bytes(b"no image")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               "--nproc-per-node=2", str(place / "worker.py"), str(place)]  # fmt: skip
    path = os.pathsep.join(p for p in sys.path if p)
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stderr
    return place


@pytest.mark.parametrize(("name", "count"), [("five", 5), ("one", 1)])
def test_two_processes_see_what_one_sees(together: Path, name: str, count: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        data = open_dataset("folder", together / name, "val")
        alone = evaluate(load_model(together / "model"), data)
    finally:
        torch.set_num_threads(threads)
    for rank in range(2):
        confusion, ids = torch.load(together / f"{name}-{rank}.pt")
        assert torch.equal(confusion, alone.confusion)
        assert ids == [image.id for image in alone.images] == [str(i) for i in range(count)]


def test_a_broken_file_of_one_process_ends_both(together: Path) -> None:
    messages = [torch.load(together / f"broken-{rank}.pt") for rank in range(2)]
    assert messages[0].startswith("process 1 could not evaluate")
    assert all("3.jpg" in message and "cannot read" in message for message in messages)


# The command.


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return model().save_pretrained(tmp_path / "model")


def run_folder(tmp_path: Path) -> Path:
    model().save_pretrained(tmp_path / "run/model")
    (tmp_path / "run/config.yaml").write_text(
        f"data: {{name: scenes, size: {SIZE}, val_length: 3, val_split: val}}\n"
    )
    return tmp_path / "run"


SCENES = ("--data.name", "scenes", "--data.size", str(SIZE), "--data.length", "3", "--workers", "0")


def test_table_json_and_pictures(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "result.json"
    arguments = ("--scales", "0.5,1", "--flip", "--window", "32", "40", "--iterations", "2")
    out = ("--json", str(result), "--out", str(tmp_path / "new/pictures"))
    assert run("evaluate", str(saved), *SCENES, *arguments, *out) == 0
    text = capsys.readouterr().out
    content = json.loads(result.read_text())
    assert set(content["iou"]) == set(Scenes.info.classes)
    assert f"mIoU {content['miou']:.2f}" in text
    assert "violet unlit" in text
    assert len(content["confusion"]) == 11
    assert content["options"]["window"] == [32, 40]
    dataset = Scenes("val", size=SIZE, length=3)
    options = InferenceOptions((0.5, 1.0), flip=True, window=(32, 40), iterations=2)
    expected = evaluate(load_model(saved), dataset, options)
    assert content["confusion"] == expected.confusion.tolist()
    for name in ("confusion", "best", "worst"):
        with Image.open(tmp_path / f"new/pictures/{name}.png") as picture:
            assert picture.width > 300


def test_a_run_folder_knows_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", str(run_folder(tmp_path)), "--workers", "0", "--report") == 0
    assert "3 images of scenes val" in capsys.readouterr().out
    assert (tmp_path / "run/report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --data.name and --data.root"),
        (("--data.name", "voc"), "give it as --data.root"),
        (("--data.name", "vok"), "expected one of voc"),
        ((*SCENES, "--split", "test"), "expected one of train, val"),
        ((*SCENES, "--scales", "big"), "--scales: big: expected numbers"),
        ((*SCENES, "--window", "1", "2", "3"), "height and width"),
        ((*SCENES, "--overlap", "1"), "--overlap is 1.0"),
        ((*SCENES, "--device", "tpu"), "--device tpu"),
        ((*SCENES, "--json", f"{__file__}/x.json"), "is not a folder"),
    ],
)
def test_mistakes_are_explained(
    saved: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("evaluate", str(saved), *arguments) == 2
    text = capsys.readouterr().err
    assert message in text
    assert "Traceback" not in text


def test_classes_of_another_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("a", *Scenes.info.classes[1:])
    network = hemnet.create_model("fcn", 11, "test_resnet", 16, classes=names)
    network.save_pretrained(tmp_path)
    assert run("evaluate", str(tmp_path), *SCENES) == 2
    assert "'a' is 'meadow' there" in capsys.readouterr().err


def test_what_model_means(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    state = load_model(folder).state_dict()
    assert all(
        torch.equal(v, state[k]) for k, v in load_model(folder / "model").state_dict().items()
    )
    (tmp_path / "empty").mkdir()
    (tmp_path / "young").mkdir()
    (tmp_path / "young/config.yaml").write_text("data: {}\n")
    (tmp_path / "file").write_text("")
    for name, message in {
        "empty": "neither a run folder",
        "young": "has saved no model yet",
        "file": "is a file",
        "missing": "there is no folder",
    }.items():
        with pytest.raises(UserError, match=message):
            load_model(tmp_path / name)


def test_report_of_what_is_no_run(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", str(saved), *SCENES, "--report") == 2
    assert "--report is for run folders" in capsys.readouterr().err


def test_damaged_configuration_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path)
    (folder / "config.yaml").write_text("data: [")
    assert run("evaluate", str(folder)) == 2
    assert "config.yaml" in capsys.readouterr().err
