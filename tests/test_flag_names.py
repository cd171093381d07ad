"""Errors name parameters of the library; the command line shows its flags instead."""

import pytest

from hemnet import cli


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("data", "check", "voc"), "give it as --root."),
        (("evaluate", "camvid", "--data.name", "camvid"), "give it as --data.root."),
        (
            ("train", "--data.name", "voc", "--out", "run", "--preset", "cpu"),
            "give it as --data.root.",
        ),
        (
            ("data", "check", "camvid", "--root", ".", "--split", "test", "--classes", "2"),
            "--classes is not for",
        ),
    ],
)
def test_parameters_become_flags(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_values_are_kept_and_switches_have_none(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.txt").write_text("a.jpg a.png\nb.jpg b.png\n")
    for name in ("a.jpg", "a.png"):
        (tmp_path / name).write_bytes(b"")
    commands = {
        "--skip-missing.": ("data", "show", "list", "--root", "pairs.txt", "--classes", "2"),
        "--data.skip_missing true.": (
            *("train", "--data.name", "list", "--data.root", "pairs.txt", "--data.classes", "2"),
            *("--data.split", "pairs", "--out", "run", "--preset", "cpu"),
        ),
    }
    for flag, words in commands.items():
        with pytest.raises(SystemExit):
            cli.main(words)
        assert f"Or use the 1 that are complete: {flag}" in capsys.readouterr().err
