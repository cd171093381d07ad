"""A grid of runs: it goes on where it stopped, survives what fails, and can be split."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from hemnet.data import Scenes
from hemnet.errors import UserError
from hemnet.inference.open_model import load_model
from hemnet.study.dataset_cache import CachedDataset
from hemnet.study.feature_cache import LIMIT, FeatureCache
from hemnet.study.grid import Cell, collect, of_shard, outcomes, read_result, run_cell, run_grid
from hemnet.study.recipe import for_head, scenes_config, study_config
from hemnet.training.loop import train
from hemnet.training.setup import build_model
from hemnet.training.signals import StopSignals


def work(cell: Cell, run: Path, data: object) -> dict[str, object]:
    """Stands in for training; runs in the worker process."""
    run.mkdir(parents=True, exist_ok=True)
    with open(run / "visits", "a") as file:
        file.write("x")
    if cell.place["does"] == "raise" and not (run.parent / "mended").exists():
        raise RuntimeError("out of luck")
    if cell.place["does"] == "die":
        os._exit(7)
    return {"miou": 50.0, "threads": torch.get_num_threads()}


def slow(cell: Cell, run: Path, data: object) -> dict[str, object]:
    time.sleep(600)
    return {"miou": 1.0}


def cells(*what: str) -> list[Cell]:
    config = scenes_config()
    config.data.length = config.data.val_length = 1
    return [Cell(f"{does}{n}", config, {"does": does}, work) for n, does in enumerate(what)]


def test_failing_and_dying_cells_are_marked_and_the_rest_goes_on(tmp_path, capsys):
    wanted = cells("fine", "raise", "die", "fine")
    outcome = run_grid(wanted, tmp_path, workers=1)
    assert set(outcome.failed) == {"raise1", "die2"}
    assert "out of luck" in outcome.failed["raise1"]
    assert "was killed" in outcome.failed["die2"]
    found = collect(wanted, [tmp_path])
    assert [found[c.name]["status"] for c in wanted] == ["done", "failed", "failed", "done"]
    assert found["fine0"]["threads"] == found["fine3"]["threads"] == 1
    assert "RuntimeError" in found["raise1"]["trace"]

    # Again: what is done is not done again, and a cell that was mended is.
    assert run_grid([wanted[0], wanted[3]], tmp_path).failed == {}
    assert "2 of 2 runs are already" in capsys.readouterr().out
    assert run_cell(wanted[0], tmp_path) is None
    assert (tmp_path / "runs" / "fine0" / "visits").read_text() == "x"
    (tmp_path / "runs" / "mended").touch()
    assert run_cell(wanted[1], tmp_path) is None
    assert collect(wanted, [tmp_path])["raise1"]["status"] == "done"


def test_a_stopped_grid_marks_nothing_as_failed(tmp_path):
    config = scenes_config()
    config.data.length = config.data.val_length = 1
    one = Cell("slow", config, {}, slow)
    signals = StopSignals()
    started = time.monotonic()
    threading.Timer(1.0, lambda: setattr(signals, "requested", signal.SIGTERM)).start()
    assert list(outcomes([one, one], tmp_path, 1, signals)) == []
    assert time.monotonic() - started < 300
    assert read_result(tmp_path / "runs" / "slow") is None


def test_shards_share_nothing_and_miss_nothing():
    wanted = cells(*["fine"] * 10)
    parts = [of_shard(wanted, f"{i}/3") for i in (1, 2, 3)]
    names = [c.name for part in parts for c in part]
    assert sorted(names) == sorted(c.name for c in wanted)
    assert len(set(names)) == 10
    for wrong in ("0/3", "4/3", "1", "a/b"):
        with pytest.raises(UserError, match="expected I/N"):
            of_shard(wanted, wrong)


def test_results_of_other_machines_are_merged(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    wanted = cells("fine", "raise", "fine")
    assert run_cell(wanted[1], a) is not None
    (b / "runs" / "raise1").mkdir(parents=True)
    (b / "runs" / "raise1" / "result.json").write_text('{"status": "done", "miou": 3.0}')
    found = collect(wanted, [a, b])
    assert list(found) == ["raise1"]
    assert found["raise1"]["miou"] == 3.0


def test_cached_images_are_the_same_and_read_once(monkeypatch):
    source = Scenes("train", size=32, length=3)
    expected = [source.read(i) for i in range(3)]
    reads = []
    original = Scenes.read
    monkeypatch.setattr(Scenes, "read", lambda self, i: (reads.append(i), original(self, i))[1])
    room = 4 * 32 * 32 * 2  # for two of them
    data = CachedDataset(source, room)
    for _ in range(2):
        for i in range(3):
            for one, other in zip(data.read(i), expected[i], strict=True):
                assert torch.equal(one, other)
    assert reads == [0, 1, 2, 2]
    assert len(data) == 3
    assert data.id(1) == source.id(1)


def test_recipe_takes_flags_and_heads_keep_what_they_know():
    config = study_config(None, ["--optim.steps", "70", "--model.options.bases", "8"])
    assert config.optim.steps == config.validation.every == 70
    assert config.model.options["bases"] == 8
    assert for_head(config, "emanet").model.options == {"bases": 8}
    assert for_head(config, "fcn").model.options == {}
    assert for_head(config, "fcn").model.channels is None
    other = study_config(None, ["--data.name=camvid", "--data.root", "somewhere"])
    assert other.data.size is None
    assert other.loss.class_weights is None
    with pytest.raises(UserError, match="val_split"):
        study_config(None, ["--data.val_split", "null"])


@pytest.mark.parametrize("head", ["hemnet", "deeplabv3plus"])
def test_a_frozen_backbone_is_asked_once_and_training_is_the_same(tmp_path, head):
    config = for_head(scenes_config(), head)
    config.data.size, config.data.crop, config.data.flip = 32, (32, 32), 0.0
    config.data.length, config.data.val_length = 4, 2
    config.optim.steps = config.validation.every = config.run.checkpoint_every = 5
    config.optim.warmup, config.optim.batch_size, config.model.channels = 0, 4, 8
    config.model.freeze_stages = 5
    cache = FeatureCache()
    losses = []
    for name, prepare in (("plain", None), ("stored", cache.attach), ("again", cache.attach)):
        train(config, tmp_path / name, quiet=True, prepare=prepare)
        model = load_model(tmp_path / name)
        losses.append(torch.cat([p.flatten() for p in model.parameters()]))
    assert cache.computed == 6  # 4 images of training, 2 of validation, in five epochs and two runs
    # Here to the bit; where another processor rounds differently, batch norms amplify it.
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(losses[2], losses[1])
    cache.expect(config)  # nothing was expected yet, so nothing is kept
    assert not cache.kept
    assert cache.room == LIMIT
    train(config, tmp_path / "crops", quiet=True, prepare=cache.attach)
    kept = len(cache.kept)
    cache.expect(config)
    assert len(cache.kept) == kept > 0
    config.run.seed += 1
    cache.expect(config)
    assert not cache.kept
    config.model.freeze_stages = 4
    assert not cache.attach(build_model(config, Scenes("train").info))
