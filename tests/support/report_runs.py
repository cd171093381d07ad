"""Run folders for reports, without a training."""

import json
from pathlib import Path

import hemnet
from hemnet.data import Scenes

SCENES = Scenes("val", size=48, length=8)


def make_run(folder: Path, name: str = "hemnet", *, metrics: bool = True) -> Path:
    info = SCENES.info
    options = {} if name == "fcn" else {"channels": 8, "bases": 5}
    model = hemnet.create_model(
        name, 11, "test_resnet", 16, classes=info.classes, palette=info.palette, **options
    )
    model.save_pretrained(folder / "model")
    if metrics:
        health = {"ratio": 3.0, "spread": 0.5, "entropy": 1.0, "in_use": 0.75, "rebuilt": 0.4}
        lines: list[dict[str, object]] = [
            {"kind": "train", "step": 10 * i, "loss": 2 / (i + 1), "rate": 0.1, "health": health,
             "images_per_second": 9.0 + i, "data_wait": 0.0}
            for i in range(1, 30)
        ]  # fmt: skip
        for step, miou in ((100, 40.0), (200, 64.25), (300, 60.0)):
            iou = dict.fromkeys(info.classes, miou)
            lines.append(
                {
                    "kind": "validation",
                    "step": step,
                    "miou": miou,
                    "iou": iou,
                    "pixel_accuracy": 71.5,
                }
            )
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "metrics.jsonl").write_text(text + '{"kind": "tr')  # a line being written
        (folder / "config.yaml").write_text(
            "# <hemnet> & co\ndata: {name: scenes, size: 48, val_length: 8}\n"
        )
        (folder / "environment.json").write_text('{"torch": "2.9"}')
    return folder
