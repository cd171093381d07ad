"""Averaged weights: what the average is, that it is judged and saved, and that it resumes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hemnet
from hemnet.errors import UserError
from hemnet.inference.evaluate import evaluate
from hemnet.run_folder import RunFolder
from hemnet.training.checkpoints import read_checkpoint
from hemnet.training.loop import train
from hemnet.training.setup import open_datasets
from hemnet.training.weight_average import AveragedWeights
from support.tiny_runs import tiny_config

LAST = Path("checkpoints", "last.safetensors")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def parts(out: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Weights and their average in a run's last checkpoint."""
    tensors = read_checkpoint(out / LAST)[0]
    found = [
        {k.removeprefix(p): v for k, v in tensors.items() if k.startswith(p)}
        for p in ("model.", "average.")
    ]
    return found[0], found[1]


def test_it_is_the_average_of_weights_and_buffers_after_a_warm_up() -> None:
    model = hemnet.create_model("hemnet", 3, "test_resnet", 16, 16, bases=8)
    average = AveragedWeights(model, 0.25)
    wanted = {k: v.clone() for k, v in model.state_dict().items()}
    for step, decay in enumerate((1 / 10, 2 / 11, 3 / 12, 0.25, 0.25)):
        model.train()(torch.randn(2, 3, 32, 32))  # moves buffers
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.update(model, step)
        for key, value in model.state_dict().items():
            whole = not value.is_floating_point()
            wanted[key] = value.clone() if whole else decay * wanted[key] + (1 - decay) * value
    found = average.module.state_dict()
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, msg=key)
    assert {"head.attention.bases.value", "head.mix.1.running_var"} <= wanted.keys()
    assert not average.module.training
    assert not any(p.requires_grad for p in average.module.parameters())


def test_the_average_is_what_is_judged_and_saved(tmp_path: Path) -> None:
    config = tiny_config("--optim.ema_decay", "0.9", "--validation.keep", "last")
    result = train(config, tmp_path, quiet=True)
    weights, average = parts(tmp_path)
    saved = hemnet.from_pretrained(tmp_path / "model")
    assert saved.state_dict().keys() == average.keys() == weights.keys()
    assert all(torch.equal(v, average[k]) for k, v in saved.state_dict().items())
    assert not torch.equal(average["head.mix.0.weight"], weights["head.mix.0.weight"])
    val = open_datasets(config.data)[1]
    assert val is not None
    found = evaluate(saved, val, progress=None)
    line = [m for m in RunFolder(tmp_path).read_metrics() if m["kind"] == "validation"][-1]
    assert (line["miou"], line["pixel_accuracy"]) == (found.miou, found.pixel_accuracy)
    assert result.miou == found.miou


def test_the_training_itself_does_not_change(tmp_path: Path) -> None:
    train(tiny_config(), tmp_path / "plain", quiet=True)
    train(tiny_config("--optim.ema_decay", "0.9"), tmp_path / "averaged", quiet=True)
    plain, averaged = (parts(tmp_path / name)[0] for name in ("plain", "averaged"))
    assert all(torch.equal(v, averaged[k]) for k, v in plain.items())
    assert not parts(tmp_path / "plain")[1]


def test_an_average_can_begin_in_the_middle_of_a_run_and_end(tmp_path: Path) -> None:
    short = tiny_config("--optim.steps", "4")
    train(short, tmp_path, quiet=True)
    weights = parts(tmp_path)[0]
    again = tiny_config("--optim.steps", "5", "--optim.ema_decay", "0.6")
    with pytest.raises(UserError, match=r"optim\.ema_decay: None → 0\.6"):
        train(again, tmp_path, resume=True, quiet=True)
    train(again, tmp_path, resume=True, allow_changes=True, quiet=True)
    after, average = parts(tmp_path)
    decay = min(0.6, 5 / 14)  # of step 4
    name = "head.mix.0.weight"
    wanted = decay * weights[name] + (1 - decay) * after[name]
    torch.testing.assert_close(average[name], wanted)
    train(tiny_config("--optim.steps", "6"), tmp_path, resume=True, allow_changes=True, quiet=True)
    assert not parts(tmp_path)[1]


@pytest.mark.parametrize("decay", ["1", "-0.1", "2"])
def test_a_decay_is_a_share(decay: str) -> None:
    with pytest.raises(UserError, match=r"optim\.ema_decay is .*: expected at least 0 and below 1"):
        tiny_config("--optim.ema_decay", decay)
