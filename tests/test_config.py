"""Configurations: files, flags, and what is said about mistakes."""

import re
from pathlib import Path

import pytest
import yaml

from hemnet import cli
from hemnet.errors import UserError
from hemnet.models.costs import PAPER_ROWS, PaperRow
from hemnet.run_folder import RunFolder
from hemnet.training import config_parser
from hemnet.training.config import RENAMED, TrainConfig, check_config, get
from hemnet.training.config_parser import (
    differences,
    dump_config,
    help_text,
    known_keys,
    read_config,
    run_config,
)
from hemnet.training.setup import settle
from support import ROOT

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
PAPER = {
    "voc_resnet101": ("voc", 0.5, "resnet101s", 8),
    "pascal_context_resnet101": ("pascal_context", 0.5, "resnet101s", 8),
    "coco_stuff_resnet101": ("coco_stuff", 0.6, "resnet101s", 8),
    "voc_resnet50_ablation": ("voc", 0.5, "resnet50s", 16),
}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_file_is_complete_and_explained(path: Path) -> None:
    config = read_config(path)
    content = yaml.safe_load(path.read_text())
    keys = [f"{section}.{name}" for section, values in content.items() for name in values]
    assert keys == known_keys()
    assert path.read_text().startswith("# ")
    assert config.model.options.get("iterations", 3) == 3


def test_all_runs_are_there() -> None:
    names = {path.stem for path in CONFIGS}
    assert names >= PAPER.keys() | {f"{name}_emanet" for name in PAPER}
    assert names >= {"voc_resnet101_deeplabv3plus", "voc_resnet101_psanet"}
    assert names >= {"coco_pretrain", "voc_trainaug", "voc_trainval", "folder", "scenes"}
    assert names >= {"camvid", "camvid_resnet50", "camvid_efficientnet_lite0"}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_recipe(name: str) -> None:
    config = read_config(CONFIGS[0].with_name(f"{name}.yaml"))
    data, step_size, backbone, stride = PAPER[name]
    assert (config.data.name, config.model.backbone) == (data, backbone)
    assert (config.model.output_stride, config.model.channels) == (stride, 512)
    assert config.model.options["step_size"] == step_size
    assert config.model.options["preset"] == "paper"
    optim = config.optim
    assert (optim.name, optim.steps, optim.batch_size) == ("sgd", 30_000, 16)
    assert (optim.lr, optim.poly_power, optim.momentum) == (9e-3, 0.9, 0.9)
    assert (optim.weight_decay, optim.bias_lr_mult) == (1e-4, 2.0)
    assert (config.data.crop, config.data.scale) == ((513, 513), (0.5, 2.0))
    lineage(config)
    twin = read_config(CONFIGS[0].with_name(f"{name}_emanet.yaml"))
    assert all(line.startswith("model.") for line in differences(config, twin))


def lineage(config: TrainConfig) -> None:
    """What EMANet's recipe has and torch's and our defaults have not."""
    assert config.model.norm_momentum == 3e-4
    assert config.data.scale_step == 0.25
    assert (config.loss.mean_over, config.validation.keep) == ("all", "last")


@pytest.mark.parametrize(
    "row", [row for row in PAPER_ROWS if row.model != "fcn"], ids=lambda row: row.name
)
def test_every_row_of_table_3_has_a_run_that_differs_in_the_model_alone(row: PaperRow) -> None:
    """256 channels are a flag, as docs/reproduce.md says."""
    suffix = "" if row.model == "hemnet" else f"_{row.model}"
    flags = ["--model.channels", "256"] if row.name.endswith("_256") else []
    hemnet = read_config(CONFIGS[0].with_name("voc_resnet101.yaml"))
    config = read_config(CONFIGS[0].with_name(f"voc_resnet101{suffix}.yaml"), flags)
    assert (config.model.name, config.model.channels) == (row.model, row.channels)
    changed = differences(hemnet, config)
    assert all(
        line.startswith(("model.name", "model.channels", "model.options")) for line in changed
    )
    lineage(config)


def test_the_stages_of_the_voc_test_protocol_follow_each_other() -> None:
    stages = [
        read_config(CONFIGS[0].with_name(f"{name}.yaml"))
        for name in ("coco_pretrain", "voc_trainaug", "voc_trainval")
    ]
    assert [stage.model.init_from for stage in stages] == [
        None,
        "runs/coco_pretrain",
        "runs/voc_trainaug",
    ]
    assert stages[2].data.val_split is None
    assert [stage.optim.lr for stage in stages] == [0.009, 0.001, 0.0001]
    for stage in stages:
        lineage(stage)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("optim: {lr: 1e-2, steps: 7}\nmodel: {options: {bases: 8}}\n")
    flags = ["--optim.steps", "9", "--model.options.step_size", "0.6", "--data.crop=[65, 97]"]
    config = read_config(file, flags)
    assert (config.optim.lr, config.optim.steps) == (0.01, 9)
    assert config.model.options == {"bases": 8, "step_size": 0.6}
    assert config.data.crop == (65, 97)


CHANGED = {  # new name → a value that is not the default
    "model.init_from": "runs/a",
    "data.skip_missing": True,
    "optim.memory_gib": 3.0,
    "optim.lr": 0.5,
    "optim.poly_power": 2.0,
    "optim.plateau_patience": 4,
    "optim.bias_lr_mult": 3.0,
    "optim.head_lr_mult": 7.0,
    "optim.ema_decay": 0.5,
    "loss.mean_over": "all",
}


@pytest.mark.parametrize("old, new", RENAMED.items())
def test_old_names_are_read_with_one_warning(
    old: str, new: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config_parser.warn_of_old_name.cache_clear()
    value = CHANGED[new]
    section, _, name = old.partition(".")
    file = tmp_path / "a.yaml"
    file.write_text(yaml.safe_dump({section: {name: value}}))
    text = yaml.safe_dump(value).splitlines()[0]
    for given in (
        read_config(file),
        read_config(None, [f"--{old}", text]),
        read_config(None, [f"--{old}={text}"]),
        read_config(file, [f"--{new}", text]),
    ):
        assert get(given, new) == value != get(TrainConfig(), new)
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"{old} is now called {new}")
    file.write_text(yaml.safe_dump({section: {name: value, new.partition(".")[2]: value}}))
    with pytest.raises(UserError, match=f"{new} is given twice, once by its old name"):
        read_config(file)


def test_a_run_folder_with_old_names_is_read(tmp_path: Path) -> None:
    flags = [f"--{key}={value}" for key, value in CHANGED.items()]
    content = yaml.safe_load(dump_config(read_config(None, flags)))
    for old, new in RENAMED.items():
        (section, before), name = old.split("."), new.split(".")[1]
        content[section][before] = content[section].pop(name)
    RunFolder(tmp_path).config.write_text(yaml.safe_dump(content))
    assert run_config(tmp_path) == read_config(None, flags)


def test_what_is_dumped_reads_back(tmp_path: Path) -> None:
    config = read_config(None, ["--data.label_map", "{0: 1, 7: 255}", "--optim.lr", "1e-5"])
    (tmp_path / "a.yaml").write_text(dump_config(config))
    assert read_config(tmp_path / "a.yaml") == config
    assert differences(config, config) == []


def test_differences_name_what_changed_and_leave_out_what_does_not_matter() -> None:
    one = TrainConfig()
    other = read_config(None, ["--optim.lr", "0.5", "--data.workers", "7"])
    assert differences(one, other) == ["optim.lr: 0.009 → 0.5"]
    flags = ["--validation.overlap", "0.2"]
    assert differences(one, read_config(None, flags)) == []
    windows = ["--validation.window", "99"]
    assert len(differences(read_config(None, windows), read_config(None, windows + flags))) == 1


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--data.nme", "voc"], "did you mean data.name?"),
        (["--lr", "1"], "did you mean optim.lr?"),
        (["--optim.lr", "fast"], "optim.lr is fast: expected float"),
        (["--data.crop", "5.5"], "data.crop is 5.5: expected tuple[int, int]"),
        (["--optim.lr", "-1"], "expected above 0"),
        (["--optim.lr", ".nan"], "expected a number up to"),
        (["--optim.steps", "0"], "at least 1"),
        (["--data.flip", "2"], "0 to 1"),
        (["--optim.accumulate", "3"], "equal passes"),
        (["--run.precision", "fp16", "--run.device", "cpu"], "needs a GPU"),
        (["--run.device", "tpu"], "expected auto, cpu, cuda or mps"),
        (["--loss.ohem", "1.5"], "above 0 and at most 1"),
        (["--loss.class_weights", "[1, -1]"], "expected numbers from 0"),
        (["--loss.stride", "3"], "a multiple of 3, plus 1"),
        (["--data.scale", "[2, 1]"], "smallest and a largest"),
        (["--data.scale_step", "0.4"], "not a whole number of such steps"),
        (["--data.scale_step", "0"], "expected above 0"),
        (["--model.norm_momentum", "0"], "expected above 0"),
        (["--model.norm_momentum", "2"], "above 0 and at most 1"),
        (["--loss.mean_over", "some"], "loss.mean_over is some: expected"),
        (["--validation.keep", "first"], "validation.keep is first: expected"),
        (["stray"], "belongs to no flag"),
    ],
)
def test_mistakes_in_flags(flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        read_config(None, flags)


@pytest.mark.parametrize(
    "text, message",
    [
        ("optm: {lr: 1}", "did you mean optim?"),
        ("optim: {lrr: 1}", "did you mean optim.lr?"),
        ("optim: 3", "expected settings below it"),
        ("- 1", "is not a configuration"),
        ("a: [", "cannot be read as YAML"),
        ("optim: {steps: many}", "optim.steps is many: expected int"),
        ("optim: {steps: null}", "optim.steps is null: expected int"),
        ("optim: {betas: null}", "optim.betas is null: expected tuple"),
        ("data: {crop: null}", "data.crop is null: expected tuple"),
        ("data: {crop: [513, null]}", "data.crop"),
        ("model: {options: null}", "model.options is null: expected dict"),
        ("run: {device: null}", "run.device is null: expected str"),
        (f"optim: {{steps: 1{'0' * 400}}}", "(401 characters): expected a number up to"),
        (f"optim: {{lr: 1{'0' * 400}}}", "too large"),
        (f"run: {{seed: 1{'0' * 5000}}}", "cannot be read as YAML"),
        (f"model: {{options: {{bases: 1{'0' * 400}}}}}", "model.options is 1000"),
        ("optim: {lr: 1.0e+308}", "expected a number up to"),
        ("optim: {poly_power: .inf}", "optim.poly_power is inf: expected"),
        ("optim: {betas: [0.9, 1.5]}", "expected shares below 1"),
        ("data: {length: -1}", "data.length is -1: expected at least 1"),
        (
            "data: {workers: 1000000}",
            "data.workers is 1000000: expected 0 to 1024",
        ),
        ("validation: {iterations: 1000000000}", "expected 1 to 1000"),
    ],
)
def test_mistakes_in_files(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        read_config(tmp_path / "a.yaml")


@pytest.mark.parametrize("value", ["null", f"1{'0' * 400}", ".nan", "''", "[]", "{}", "[null]"])
@pytest.mark.parametrize("key", known_keys())
def test_a_wrong_value_is_a_short_message(key: str, value: str, tmp_path: Path) -> None:
    section, _, name = key.partition(".")
    (tmp_path / "a.yaml").write_text(f"{section}: {{{name}: {value}}}")
    said = ""
    try:
        read_config(tmp_path / "a.yaml")
    except UserError as error:
        said = str(error)
    assert len(said) < 400


def test_missing_file() -> None:
    with pytest.raises(UserError, match="no configuration file nowhere"):
        read_config("nowhere.yaml")


def test_defaults_are_valid_and_all_settings_are_in_the_help() -> None:
    check_config(TrainConfig())
    text = help_text()
    assert all(f"--{key} " in text for key in known_keys())


@pytest.mark.parametrize(
    "args, message",
    [
        (["--out", "x"], "--config"),
        (["--out", "x", "--resume"], "holds no run to resume"),
        (["--config", "gone.yaml", "--out", "x"], "no configuration file"),
        (["--config", str(CONFIGS[0]), "--out", "x", "--data.rot", "y"], "data.root"),
        (["--config", str(CONFIGS[0]), "--out", "x", "--allow-changes"], "--resume"),
    ],
)
def test_the_command_line_exits_with_2(
    args: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["train", *args])
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_all_mistakes_are_listed_at_once(tmp_path: Path) -> None:
    flags = ["--optim.lr", "-1", "--optim.steps", "0", "--loss.stride", "0", "--loss.ohem", "3"]
    with pytest.raises(UserError) as error:
        read_config(None, [*flags, "--data.scale", "[2, 1]", "--optim.accumulate", "0"])
    text = str(error.value)
    assert text.startswith("6 settings cannot be used:\n  ")
    for key in ("optim.lr", "optim.steps", "loss.stride", "loss.ohem", "data.scale"):
        assert f"\n  {key} is" in text or f" {key} [" in text
    file = tmp_path / "a.yaml"
    file.write_text("optim: {lrr: 1, stepps: 5}\nmodle: {}\n")
    with pytest.raises(UserError) as error:
        read_config(file, ["--data.rot", "x"])
    for word in ("optim.lr?", "optim.steps?", "model?", "data.root?"):
        assert f"did you mean {word}" in str(error.value)
    file.write_text("optim: {lr: fast, steps: many}\n")
    with pytest.raises(UserError) as error:
        read_config(file, ["--data.flip", "often", "--data.crop=wide"])
    assert str(error.value).startswith("4 settings cannot be used:")
    for key in ("optim.lr", "optim.steps", "data.flip", "data.crop"):
        assert f"\n  {key} is" in str(error.value)


@pytest.mark.parametrize("key", ["model.num_classes", "data.num_classes", "model.classes"])
def test_who_asks_for_the_number_of_classes_learns_where_they_come_from(key: str) -> None:
    with pytest.raises(UserError, match="classes come from the data: its classes"):
        read_config(None, [f"--{key}", "3"])


def test_short_forms_of_values(tmp_path: Path) -> None:
    assert read_config(None, ["--data.crop", "96"]).data.crop == (96, 96)
    assert read_config(None, ["--data.crop=96"]).data.crop == (96, 96)
    found = read_config(None, ["--data.label_map", "0:255, 1:0,2:void"]).data.label_map
    assert found == {0: 255, 1: 0, 2: 255}
    file = tmp_path / "c.yaml"
    file.write_text('data: {crop: 96, label_map: "0:255,1:0", root: "\'a\'"}\n')
    data = read_config(file).data
    assert (data.crop, data.label_map, data.root) == ((96, 96), {0: 255, 1: 0}, "'a'")


@pytest.mark.parametrize(
    "text", ["{stem}_mask.png", "123", "a: b", "- x", "[a]", "yes", "*x", "it's: #", ""]
)
def test_texts_of_a_file_are_what_was_written(text: str, tmp_path: Path) -> None:
    config = TrainConfig()
    config.data.labels = text
    (tmp_path / "c.yaml").write_text(dump_config(config), encoding="utf-8")
    assert read_config(tmp_path / "c.yaml").data.labels == text


def test_a_warm_up_that_is_too_long_for_a_trial_is_shortened() -> None:
    config = read_config(None, ["--optim.steps", "40", "--optim.warmup", "200"])
    assert settle(config).optim.warmup == 10
    assert settle(read_config(None, ["--optim.warmup", "200"])).optim.warmup == 200
