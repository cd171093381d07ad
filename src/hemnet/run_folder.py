"""The run folder: the names of its files, and how its metrics are read. Nobody else knows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hemnet.files import atomic_write, read_object


class RunFolder:
    """`config.yaml`, `environment.json`, `metrics.jsonl`, `checkpoints/`, `model/`, `report.html`.

    Making one touches no file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"  # complete
        self.environment = self.path / "environment.json"
        self.metrics = self.path / "metrics.jsonl"  # an object a line; see `read_metrics`
        self.checkpoints = self.path / "checkpoints"
        self.last = self.checkpoints / "last.safetensors"
        self.best = self.checkpoints / "best.safetensors"
        self.model = self.path / "model"  # what `save_pretrained` writes
        self.tensorboard = self.path / "tensorboard"
        self.report = self.path / "report.html"
        self.lock = self.path / ".lock"

    @property
    def holds_run(self) -> bool:
        return self.config.is_file()

    def read_environment(self) -> dict[str, Any]:
        return read_object(self.environment)

    def read_metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, of the kind "train" or "validation" or of both.

        A line that was cut short or damaged is left out.
        """
        if not self.metrics.is_file():
            return []
        found = []
        for line in self.metrics.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if _is_metrics(content) and kind in (None, content["kind"]):
                found.append(content)
        return found

    def saved_validation(self) -> dict[str, Any] | None:
        """The validation of the model in `model/`; None before the first one."""
        lines = self.read_metrics("validation")
        saved = [line for line in lines if line.get("saved")]
        if saved:
            return saved[-1]
        # Runs from before the log said which model was saved.
        return max(lines, key=lambda line: float(line["miou"]), default=None)

    def cut_metrics(self, step: int) -> None:
        """Drop what comes after a step, from which the run goes on."""
        kept = [line for line in self.read_metrics() if line["step"] <= step]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        if not self.metrics.exists() or text != self.metrics.read_text(
            encoding="utf-8", errors="replace"
        ):
            with atomic_write(self.metrics, durable=True) as file:
                file.write(text.encode())

    def remove_partial_files(self) -> None:
        """Those of a process that was killed while it wrote."""
        for folder in (self.path, self.checkpoints):
            for part in folder.glob("*.part"):
                part.unlink(missing_ok=True)


def _is_metrics(line: Any) -> bool:
    """Whether a value is a line as a run writes them."""
    if not isinstance(line, dict) or not is_number(line.get("step"), int) or line["step"] < 0:
        return False
    if line.get("kind") == "train":
        return is_number(line.get("loss")) and isinstance(line.get("health", {}), dict)
    if line.get("kind") != "validation" or not isinstance(line.get("iou"), dict):
        return False
    scores = (line.get("miou"), line.get("pixel_accuracy"))
    iou = (value for value in line["iou"].values() if value is not None)  # of absent classes
    return all(is_number(value) for value in (*scores, *iou))


def is_number(value: Any, kind: Any = int | float) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
