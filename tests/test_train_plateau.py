"""Training until the score stops rising: when the rate falls, when it ends, and resuming."""

import signal
from pathlib import Path

import pytest

from hemnet.errors import UserError
from hemnet.run_folder import RunFolder
from hemnet.training import loop as training
from hemnet.training.checkpoints import read_progress
from hemnet.training.config import OptimConfig
from hemnet.training.config_parser import read_config
from hemnet.training.loop import train
from hemnet.training.optim import lr_at
from support.tiny_runs import tiny_config


def test_plateaus_set_the_rate() -> None:
    config = OptimConfig(steps=100, lr=1.0, plateau_patience=2, warmup=10)
    assert lr_at(0, config) == pytest.approx(0.1)
    assert lr_at(50, config) == lr_at(99, config) == 1.0
    assert lr_at(50, config, 2) == pytest.approx(0.09)
    with pytest.raises(UserError, match="needs validation"):
        read_config(None, ["--optim.plateau_patience", "2", "--data.val_split", "null"])


class Found:
    """An evaluation with a score of the test's choice."""

    pixel_accuracy = 50.0

    def __init__(self, miou: float) -> None:
        self.miou = miou
        self.iou: dict[str, float] = {}


def test_a_run_until_the_plateau_ends_and_resumes_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([10, 20, 15, None, 19, 18, 30, 1, 2, 3, 4, 5, 6, 7])

    def judge(*_: object, **__: object) -> Found:
        score = next(scores)
        if score is None:
            signal.raise_signal(signal.SIGTERM)
        return Found(score)

    monkeypatch.setattr(training, "evaluate", judge)
    config = tiny_config(
        *("--optim.steps", "40", "--validation.every", "2", "--optim.plateau_patience", "2"),
        *("--optim.lr", "0.001", "--run.log_every", "2", "--run.live_report", "false"),
    )
    assert train(config, tmp_path, quiet=True).step == 8  # stopped in the fourth validation
    assert read_progress(tmp_path / "checkpoints" / "last.safetensors").falls == 0
    result = train(config, tmp_path, resume=True, quiet=True)
    assert result.finished
    assert list(scores) == [5, 6, 7], (
        "4 and 8, 10 without a better one; 12 is; 16, 20: the third ends it"
    )
    assert result.step == 20
    lines = [m for m in RunFolder(tmp_path).read_metrics() if m["kind"] == "train"]
    rates = {m["step"]: m["rate"] for m in lines}
    assert rates[8] == pytest.approx(1e-3)
    assert rates[10] == pytest.approx(3e-4)
    assert rates[18] == pytest.approx(9e-5)
