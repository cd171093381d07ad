"""Files and arguments that are damaged, hostile or odd: one message, no traceback, no hang."""

import json
import os
import struct
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hemnet import cli
from hemnet.data.download import Archive, unpack, verify
from hemnet.data.label_conversion import convert
from hemnet.data.listing import files_under
from hemnet.errors import DataError, UserError
from hemnet.files import read_object, write_json
from hemnet.models.pretrained import from_pretrained
from hemnet.models.registry import create_model
from support.tiny_data import folder


def said(capsys: pytest.CaptureFixture[str], *args: object, code: int = 2) -> str:
    """Everything that a command prints."""
    with pytest.raises(SystemExit) as exit_info:
        cli.main([str(arg) for arg in args])
    output = "".join(capsys.readouterr())
    assert exit_info.value.code == code, output
    assert "Traceback" not in output
    return output


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return folder(tmp_path / "data", {"train": 2})


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_loops_of_links_end(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = data / "images" / "train"
    before = files_under(data, (".jpg",))
    for name in "abc":
        (images / name).symlink_to(images)
        (data / "labels" / "train" / name).symlink_to(data)
    assert files_under(images, (".jpg",)) == [p for p in before if p.parent == images]
    found = said(capsys, "data", "check", "folder", "--root", data, "--workers", "1", code=0)
    assert "nothing wrong" in found


@pytest.mark.parametrize(
    "head",
    [
        b"qoif" + struct.pack(">IIBB", 24, 32, 3, 0) + b"\xfe",
        b"DDS " + struct.pack("<II", 124, 0) + b"\xff" * 40,
        b"\x89PNG\r\n\x1a\n" + b"\x00" * 30,
        b"II*\x00" + b"\xff" * 40,
        b"",
    ],
)
@pytest.mark.parametrize("name", ["images/train/0.jpg", "labels/train/0.png"])
def test_damaged_pictures(
    head: bytes, name: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / name).write_bytes(head)
    found = said(capsys, "data", "check", "folder", "--root", data, "--workers", "1")
    assert "1 unreadable" in found
    assert "cannot read the image" in found


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")
@pytest.mark.parametrize("name", ["images/train/0.jpg", "labels/train/0.png"])
def test_named_pipes_are_not_waited_for(
    name: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / name).unlink()
    os.mkfifo(data / name)
    said(capsys, "data", "check", "folder", "--root", data, "--workers", "1")


def test_classes_that_are_not_utf8(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "classes.txt").write_bytes("Stra\xdfe\nHimmel\nBaum".encode("latin-1"))
    check = ("data", "check", "folder", "--root", data)
    assert "Save it as UTF-8" in said(capsys, *check)
    (data / "map.txt").write_bytes(b"\xff0:1")
    assert "UTF-8" in said(capsys, *check, "--classes", "3", "--label-map", data / "map.txt")


@pytest.mark.parametrize("value", ["²", "٣", "x" * 5000, "9" * 5000, "a\0b", "0"])
@pytest.mark.parametrize("flag", ["--classes", "--label-map"])
def test_odd_arguments(
    flag: str, value: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = said(capsys, "data", "check", "folder", "--root", data, flag, value)
    assert len(found) < 1000


@pytest.mark.parametrize("value", ["²:1", "1:²", "9" * 400 + ":1", ":", "1:" + "2" * 5000])
def test_odd_label_maps(value: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "data", "check", "folder", "--root", data, "--label-map", value)
    assert "label map" in found


def test_endless_iterations(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["evaluate", "x"], ["predict", "x", "y", "--out", "z"]):
        found = said(capsys, *command, "--iterations", "1000000000")
        assert "expected 1 to 1000" in found
    found = said(capsys, "export", "x", "--out", "x.onnx", "--iterations", "1000000000")
    assert "expected 1 to 1000" in found


def odd_zip(path: Path, *, encrypted: bool = False, method: int = 0) -> Path:
    """A zip file whose heads say that its only file is encrypted, or packed in an odd way."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "content")
    content = bytearray(path.read_bytes())
    central = content.index(b"PK\x01\x02")
    for place in (6, central + 8):
        content[place] |= encrypted
    for place in (8, central + 10):
        content[place] = method
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", [{"encrypted": True}, {"method": 99}, {"method": 1}])
def test_odd_zip_files(kind: dict[str, int], tmp_path: Path) -> None:
    path = odd_zip(tmp_path / "a.zip", **kind)
    assert "not a zip file that can be read" in (verify(path, Archive("http://x/a.zip")) or "")
    with pytest.raises(UserError, match="cannot be unpacked"):
        unpack(path, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.zip"]


@pytest.mark.parametrize("root", [".", "/", "FOLDER", "FILE", "LIST"])
@pytest.mark.parametrize("action", ["check", "show"])
def test_lists_that_are_none(
    root: str,
    action: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd.csv").write_text(". .\n/ /\n")
    (tmp_path / "file").write_text("a b\0c\n" + "x" * 200_000 + " y")
    places = {"FOLDER": "empty", "FILE": "file", "LIST": "odd.csv"}
    said(capsys, "data", action, "list", "--root", places.get(root, root), "--classes", "2")
    if root not in ("FILE", "LIST"):
        said(capsys, "data", action, "folder", "--root", places.get(root, root))


@pytest.mark.parametrize("name", ["x" * 5000, "a/" * 3000, "a\0b"])
def test_names_that_no_file_can_have(
    name: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (
        ("data", "check", "folder", "--root", name),
        ("data", "check", "folder", "--root", data, "--json", name),
        ("data", "show", "scenes", "--size", "32", "--count", "1", "--out", name),
        ("costs", "--json", name),
        ("evaluate", name),
        ("predict", name, data, "--out", tmp_path / "out"),
        ("predict", tmp_path, name, "--out", tmp_path / "out"),
        ("export", tmp_path, "--out", name + ".onnx"),
        ("train", "--config", name, "--out", tmp_path / "run"),
        ("train", "--config", data / "classes.txt", "--out", name),
        ("train", "--resume", "--out", name),
        ("app", name),
    ):
        assert len(said(capsys, *command)) < 2000, command


def test_results_that_cannot_be_written_are_refused_before_the_work(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file" / "x.json"):
        for command in (
            ("data", "check", "folder", "--root", data, "--json"),
            ("costs", "--json"),
            ("evaluate", tmp_path, "--json"),
            ("export", tmp_path, "--out", tmp_path / "x.onnx", "--json"),
            ("data", "show", "scenes", "--out"),
        ):
            assert "cannot write" in said(capsys, *command, place)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "no permission to write" in said(capsys, "costs", "--json", tmp_path / "x.json")


@contextmanager
def full_after(bytes_of_a_file: int) -> Iterator[None]:
    """What the system says when a disk is full is what it says of a file that grows too large."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_of_a_file, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(sys.platform == "win32", reason="has no limits of this kind")
@pytest.mark.parametrize(
    "command",
    [
        ("data", "show", "scenes", "--size", "64", "--count", "4", "--out", "out/x.png"),
        ("costs", "--model", "fcn", "--backbone", "test_resnet", "--size", "64", "--json", "out/x"),
        ("export", "model", "--format", "onnx", "--out", "out/x.onnx"),
        ("export", "model", "--format", "openvino", "--out", "out/x.xml"),
        ("export", "model", "--format", "torch", "--out", "out/x.pt2"),
    ],
    ids=lambda command: " ".join(command[:2]) + command[-1][-5:],
)
def test_a_full_disk_is_said_and_leaves_no_part(
    command: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    if command[0] == "export":
        create_model("fcn", 3, "test_resnet", 16).save_pretrained("model")
    with full_after(50 if command[0] == "costs" else 5000):
        assert "the disk is full" in said(capsys, *command, code=1)
    assert not list(Path("out").glob("*"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")
def test_named_pipes_as_configuration_and_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    said(capsys, "train", "--config", pipe, "--out", tmp_path / "run")
    said(capsys, "evaluate", pipe)
    said(capsys, "data", "check", "list", "--root", pipe, "--classes", "2")


def test_a_model_of_endless_iterations_is_refused(tmp_path: Path) -> None:
    for key in ("iterations", "eval_iterations"):
        with pytest.raises(UserError, match="from 1 to 1000"):
            create_model("hemnet", 3, "test_resnet", 16, **{key: 10**9})


def end(job: tuple[Path, Path]) -> None:
    """As scipy does with some damaged .mat files."""
    if job[0].name == "3.mat":
        os._exit(1)
    job[1].write_text("done")


@pytest.mark.skipif(os.name == "nt", reason="aborts show a window there")
def test_a_label_whose_reading_ends_the_process_is_named(tmp_path: Path) -> None:
    jobs = [(tmp_path / f"{n}.mat", tmp_path / f"{n}.png") for n in range(6)]
    with pytest.raises(DataError, match=r"3\.mat: so damaged"):
        convert(end, jobs)
    assert {p.name for p in tmp_path.iterdir()} >= {"0.png", "1.png", "2.png"}


@pytest.mark.parametrize(
    "flag, value",
    [
        *(("--count", "0"), ("--count", "100000"), ("--tile", "1000000"), ("--columns", "-1")),
        *(("--seed", "-1"), ("--seed", "9" * 400), ("--size", "1000000"), ("--length", "9" * 30)),
    ],
)
def test_sheets_of_odd_numbers(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected" in said(capsys, "data", "show", "scenes", flag, value)


def test_a_gain_beyond_float32(tmp_path: Path) -> None:
    create_model("hemnet", 3, "test_resnet", 16, channels=8, bases=4).save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    content = json.loads(config.read_text())
    content["options"]["gain"] = 1e300
    config.write_text(json.dumps(content))
    with pytest.raises(UserError, match="cannot be used"):
        from_pretrained(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no such files")
def test_results_do_not_take_the_place_of_links_and_devices(tmp_path: Path) -> None:
    """As root, --json /dev/null once made a file of the device."""
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "deep" / "target"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device"):  # nobody reads: not waited for
        write_json(pipe, {})
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_json(pipe, {"a": 1})
    assert json.loads(os.read(reader, 100)) == {"a": 1}
    os.close(reader)
    assert pipe.is_fifo()
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)
    write_json(link, {"b": 2})
    assert link.is_symlink()
    assert read_object(target) == {"b": 2}
    assert not list(tmp_path.rglob("*.part"))
