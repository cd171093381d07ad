"""Options by their old names are still read wherever options are given, with a warning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hemnet
from hemnet.renamed_options import current_options
from hemnet.training.config_parser import read_config
from hemnet.training.setup import settle

OLD = {"start": "average", "gain_rate": 4.0}
NEW = {"initial_bases": "running_average", "gain_lr_mult": 4.0}


def warned():
    return pytest.warns(FutureWarning, match=r"initial_bases=|gain_lr_mult=")


def test_of_two_names_for_one_option_the_later_counts() -> None:
    with warned():
        assert current_options({"start": "image"} | NEW) == NEW
    with warned():
        assert current_options(NEW | {"bases": 4, "start": "image"}) == (
            NEW | {"bases": 4, "initial_bases": "image"}
        )


def test_names_of_today_are_left_alone(recwarn: pytest.WarningsRecorder) -> None:
    options = NEW | {"step_size": [0.5, 0.5], "mixture": {"name": "Bernoulli"}, "variance": None}
    assert current_options(options) == options
    assert not recwarn


def test_units_and_models_take_old_names() -> None:
    with warned():
        unit = hemnet.HighwayEMAttention(8, bases=4, **OLD)
    with warned():
        model = hemnet.create_model("hemnet", 3, "test_resnet", channels=8, bases=4, **OLD)
    for found in (unit, model.head.attention):
        assert found.initial_bases == "running_average"
        assert found.gain.factor == 4
    assert NEW.items() <= model.config.options.items()
    assert not OLD.keys() & model.config.options.keys()
    with pytest.raises(TypeError, match="gain_speed"):
        hemnet.HighwayEMAttention(8, gain_speed=3)  # type: ignore[call-arg]


def test_saved_models_with_old_names_load(tmp_path: Path) -> None:
    model = hemnet.create_model("hemnet", 3, "test_resnet", channels=8, bases=4, **NEW)
    folder = model.save_pretrained(tmp_path / "model")
    content = json.loads((folder / "config.json").read_text())
    for name in NEW:
        del content["options"][name]
    content["options"] |= OLD
    (folder / "config.json").write_text(json.dumps(content))
    with warned():
        assert hemnet.from_pretrained(folder).config == model.config


@pytest.mark.parametrize("flags", [False, True])
def test_configurations_with_old_names_are_read(flags: bool, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"model: {{name: hemnet, options: {json.dumps({} if flags else OLD)}}}\n")
    given = [f"--model.options.{name}={value}" for name, value in OLD.items()] if flags else []
    with warned():
        config = read_config(file, given)
    assert config.model.options == NEW
    config.model.options = dict(OLD)  # as Python users may have it
    with warned():
        assert NEW.items() <= settle(config).model.options.items()
