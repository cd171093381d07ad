"""Files and arguments that are damaged, hostile or odd: one message, no traceback, no hang."""

import os
import struct
import zipfile
from pathlib import Path

import pytest

from hemnet import cli
from hemnet.data.download import Archive, unpack, verify
from hemnet.data.layouts import files_under
from hemnet.errors import UserError
from tiny_data import folder


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
    assert "cannot be read as an image" in found


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
