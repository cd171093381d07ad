"""`hemnet predict`: any image in, complete files out, whatever stands beside it."""

import errno
import io
import json
import os
import struct
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import hemnet
from hemnet.data.class_lists import colour_map
from hemnet.data.datasets.voc import CLASSES as VOC
from hemnet.data.labels import raw_values
from hemnet.errors import DataError, UserError
from hemnet.image_io import open_image, read_image
from hemnet.inference import prediction_files as maps
from hemnet.inference.input_files import find_images, unique_names
from support import tiny_data
from support.command_line import run

CLASSES = ("background", "tree", "road")
PALETTE = ((0, 0, 0), (10, 200, 30), (90, 90, 250))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    network = hemnet.create_model(
        "hemnet", 3, "test_resnet", 16, channels=8, bases=4, gain=0.3,
        classes=CLASSES, palette=PALETTE,
    )  # fmt: skip
    torch.nn.init.normal_(network.head.classifier[-1].weight, std=4)  # several classes an image
    return network.save_pretrained(tmp_path_factory.mktemp("model"))


def predict(model: Path, *inputs: Path | str, out: Path, more: tuple[str, ...] = ()) -> int:
    return run("predict", str(model), *map(str, inputs), "--out", str(out), *more)


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (out / "predictions.jsonl").read_text().splitlines()]


def test_writes_class_map_overlay_and_line(model: Path, tmp_path: Path) -> None:
    path = tiny_data.image(tmp_path / "in" / "sky.view.jpg", 40, 56)
    assert predict(model, path, out=tmp_path / "out") == 0
    expected = hemnet.from_pretrained(model).predict(path)
    with Image.open(tmp_path / "out/classes/sky.view.png") as found:
        assert found.mode == "P"
        assert np.array_equal(np.asarray(found), expected)
        assert found.getpalette()[:9] == [value for colour in PALETTE for value in colour]
    assert len(np.unique(expected)) > 1
    (line,) = lines(tmp_path / "out")
    assert (line["width"], line["height"]) == (56, 40)
    for k, name in enumerate(CLASSES):
        assert line["shares"].get(name, 0) == pytest.approx((expected == k).mean(), abs=1e-6)
    with Image.open(tmp_path / "out" / line["overlay"]) as overlay:
        assert overlay.size == (56, 40)


def test_an_overlay_leaves_the_background_alone(tmp_path: Path) -> None:
    picture = Image.new("RGB", (4, 2000), (100, 100, 100))  # higher than a strip
    classes = np.zeros((2000, 4), np.uint8)
    classes[700:] = 1
    maps.save_overlay(picture, classes, maps.full_palette(PALETTE), [0], tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as found:
        pixels = np.asarray(found).astype(int)
    assert (pixels[:700] == 100).all()
    tinted = (1 - maps.STRENGTH) * 100 + maps.STRENGTH * np.array(PALETTE[1])
    assert np.abs(pixels[700:] - tinted).max() <= 1


def formats() -> dict[str, bytes]:
    """Files of one picture; what each should be read as is the picture itself, or its grey."""
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8))
    image = small.resize((35, 25), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6
    grey16 = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    alpha = image.copy()
    alpha.putalpha(128)
    palette = image.quantize(256)
    kinds: dict[str, tuple[Image.Image, str, dict[str, Any]]] = {
        "plain.png": (image, "PNG", {}),
        "photo.jpg": (image, "JPEG", {"quality": 95}),
        "web.webp": (image, "WEBP", {"lossless": True}),
        "scan.tif": (image, "TIFF", {"compression": "tiff_lzw"}),
        "grey.png": (image.convert("L"), "PNG", {}),
        "grey16.png": (grey16, "PNG", {}),
        "grey16.tif": (grey16, "TIFF", {}),
        "alpha.png": (alpha, "PNG", {}),
        "grey-alpha.png": (alpha.convert("LA"), "PNG", {}),
        "palette.png": (palette, "PNG", {"transparency": bytes(range(256))}),
        "print.jpg": (image.convert("CMYK"), "JPEG", {"quality": 95}),
        "turned.jpg": (image.transpose(Image.Transpose.ROTATE_90), "JPEG", {"exif": exif}),
        "frames.gif": (palette, "GIF", {"save_all": True, "append_images": [palette.rotate(180)]}),
        "frames.tif": (image, "TIFF", {"save_all": True, "append_images": [image.rotate(180)]}),
        "binary.png": (image.convert("1"), "PNG", {}),
    }
    files = {}
    for name, (picture, kind, options) in kinds.items():
        buffer = io.BytesIO()
        picture.save(buffer, kind, **options)
        files[name] = buffer.getvalue()
    files["colour16.png"] = png16(np.asarray(image).astype(np.uint16) * 257)
    return files


def png16(pixels: np.ndarray) -> bytes:
    """A PNG of 16 bits a channel, which Pillow reads but does not write."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_every_kind_of_file_shows_the_same_picture(tmp_path: Path) -> None:
    files = formats()
    plain = np.asarray(Image.open(io.BytesIO(files["plain.png"]))).astype(int)
    grey = np.asarray(Image.fromarray(plain.astype(np.uint8)).convert("L").convert("RGB"))
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        found = read_image(tmp_path / name).astype(int)
        assert found.shape == plain.shape, name
        expected = grey if name.startswith("grey") else plain
        if name == "binary.png":
            assert set(np.unique(found)) <= {0, 255}
        else:
            lossy = name.startswith(("photo", "print", "turned", "palette", "frames.gif"))
            assert np.abs(found - expected).mean() < (12 if lossy else 0.01), name


@pytest.mark.parametrize("batch", ["1", "4"])
def test_company_changes_nothing(model: Path, tmp_path: Path, batch: str) -> None:
    """Alone, in a batch, or beside broken files: the same class map, byte for byte."""
    folder = tmp_path / "in"
    files = formats()
    for name, data in files.items():
        path = folder / "all" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for seed in range(5):
        tiny_data.image(folder / "all" / "more" / f"{seed}.png", seed=seed)
    jpeg, png = files["photo.jpg"], files["plain.png"]
    broken = {
        "cut.jpg": jpeg[: len(jpeg) // 2],
        "cut.png": png[: len(png) // 2],
        "empty.png": b"",
        "text.jpg": b"not a picture",
        "head.tif": b"II*\0" + b"\xff" * 40,
        "crc.png": png[:40] + b"\0\0\0\0" + png[44:],
    }
    for name, data in broken.items():
        (folder / "all" / f"broken-{name}").write_bytes(data)
    out = tmp_path / "out"
    assert predict(model, folder, out=out, more=("--batch", batch)) == 1
    found = lines(out)
    assert [line["file"] for line in found] == sorted(
        str(p) for p in folder.rglob("*") if p.is_file()
    )
    failed = {Path(line["file"]).name for line in found if "error" in line}
    assert failed == {f"broken-{name}" for name in broken}
    assert all(Path(line["file"]).name in line["error"] for line in found if "error" in line)
    assert not list(out.rglob(".*"))
    network = hemnet.from_pretrained(model)
    for line in found:
        if "error" not in line:
            with Image.open(out / line["classes"]) as image:
                assert np.array_equal(np.asarray(image), network.predict(line["file"]))


def test_names_never_meet(model: Path, tmp_path: Path) -> None:
    for name in ("a/x.png", "b/x.png", "b/x.jpg", "a/sub/y.png", "b/z.png"):
        tiny_data.image(tmp_path / name, seed=len(name))
    assert predict(model, tmp_path / "a", tmp_path / "b", out=tmp_path / "out") == 0
    assert {line["classes"] for line in lines(tmp_path / "out")} == {
        "classes/a/x.png", "classes/b/x.png.png", "classes/b/x.jpg.png", "classes/sub/y.png",
        "classes/z.png",
    }  # fmt: skip
    again = predict(model, tmp_path, out=tmp_path / "out")  # its own results are no inputs
    assert again == 0
    assert len(lines(tmp_path / "out")) == 5


@given(st.lists(st.text("aB/.", min_size=1, max_size=5), min_size=1, max_size=8, unique=True))
def test_names_are_unique_and_stay_inside(texts: list[str]) -> None:
    paths = [Path("/top", *(p for p in text.split("/") if p.strip(".")), "x.png") for text in texts]
    paths = list(dict.fromkeys(paths))
    names = unique_names(paths, [path.name for path in paths])
    assert len(set(names)) == len(paths)
    assert all(".." not in Path(name).parts and not Path(name).is_absolute() for name in names)


def test_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.png", "b.jpg", "deep/c.webp"):
        tiny_data.image(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    monkeypatch.chdir(tmp_path)
    assert [s.name for s in find_images(["."])] == ["a", "b", "deep/c"]
    assert [s.path for s in find_images(["**/*.webp", "a.png", "a.png"])] == [
        Path("deep/c.webp"), Path("a.png"),
    ]  # fmt: skip
    assert [s.name for s in find_images([], ["b.jpg\n", "\n", "gone.png\n"])] == ["b", "gone"]
    (tmp_path / "none").mkdir()
    for wrong in ("gone.png", "none", "*.gif"):
        with pytest.raises(UserError, match="no "):
            find_images([wrong])
    with pytest.raises(UserError, match="no images"):
        find_images([], [])


def test_a_list_on_standard_input(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    path = tiny_data.image(tmp_path / "a.png")
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{path}\n{tmp_path}/gone.png\n"))
    assert predict(model, "-", out=tmp_path / "out") == 1
    assert "gone.png" in capsys.readouterr().err
    assert [("error" in line) for line in lines(tmp_path / "out")] == [False, True]


def test_a_full_disk_is_one_message(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for seed in range(3):
        tiny_data.image(tmp_path / "in" / f"{seed}.png", seed=seed)

    save = Image.Image.save

    def full(self: Image.Image, file: Any, *args: Any, **kwargs: Any) -> None:
        if "1.png" in file.name:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(self, file, *args, **kwargs)

    monkeypatch.setattr(Image.Image, "save", full)
    assert predict(model, tmp_path / "in", out=tmp_path / "out") == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "No space left on device" in error
    assert not list((tmp_path / "out").rglob(".*"))
    assert (tmp_path / "out/classes/0.png").exists()
    assert not (tmp_path / "out/classes/1.png").exists()


def test_an_interruption_leaves_whole_files(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(9):
        tiny_data.image(tmp_path / "in" / f"{seed}.png", seed=seed)
    from hemnet.inference import predictor as engine

    plain, calls = engine.predict_classes, iter(range(9))

    def interrupted(*args: Any) -> Any:
        if next(calls) == 6:
            raise KeyboardInterrupt
        return plain(*args)

    monkeypatch.setattr(engine, "predict_classes", interrupted)
    out = tmp_path / "out"
    assert predict(model, tmp_path / "in", out=out) == 130
    assert not list(out.rglob(".*"))
    assert lines(out)
    for line in lines(out):
        with Image.open(out / line["classes"]) as image:
            image.load()


def test_too_many_pixels_are_refused(model: Path, tmp_path: Path, capsys: Any) -> None:
    path = tiny_data.image(tmp_path / "big.png", 300, 400)
    assert predict(model, path, out=tmp_path / "out", more=("--max-pixels", "0.1")) == 1
    assert "--max-pixels" in capsys.readouterr().err


def test_pillows_own_limit_is_not_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_data.image(tmp_path / "big.png", 30, 40)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert read_image(path).shape == (30, 40, 3)
    assert Image.MAX_IMAGE_PIXELS == 100  # the caller's


def test_the_archive_of_the_voc_server(tmp_path: Path, capsys: Any) -> None:
    torch.manual_seed(0)
    network = hemnet.create_model("fcn", 21, "test_resnet", 32, classes=VOC)
    saved = network.save_pretrained(tmp_path / "model")
    for name in ("2008_000006", "2008_000011"):
        tiny_data.image(tmp_path / "in" / f"{name}.jpg", seed=len(name))
    out = tmp_path / "out"
    more = ("--voc-server", "comp6", "--no-overlays")
    assert predict(saved, tmp_path / "in", out=out, more=more) == 0
    assert "1456" in capsys.readouterr().out
    with tarfile.open(out / "results.tgz") as archive:
        assert archive.getnames() == [
            f"results/VOC2012/Segmentation/comp6_test_cls/{name}.png"
            for name in ("2008_000006", "2008_000011")
        ]
        member = archive.extractfile(archive.getnames()[0])
        assert member is not None
        image = Image.open(io.BytesIO(member.read()))
    assert image.mode == "P"
    assert image.getpalette()[:63] == [v for colour in colour_map(21) for v in colour]
    assert np.array_equal(np.asarray(image), network.predict(tmp_path / "in/2008_000006.jpg"))
    assert not (out / "overlays").exists()

    (tmp_path / "in/2008_000011.jpg").write_bytes(b"broken")
    (out / "results.tgz").unlink()
    assert predict(saved, tmp_path / "in", out=out, more=more) == 1
    assert not (out / "results.tgz").exists()
    assert "no archive" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--voc-server", "comp5"), "not PASCAL VOC"),
        (("--global-bases", "--flip"), "leave out --scales and --flip"),
        (("--scales", "0"), "scales"),
        (("--whole", "-1"), "--whole"),
        (("--device", "tpu"), "--device"),
    ],
)
def test_mistakes_exit_with_2(
    model: Path, tmp_path: Path, more: tuple[str, ...], message: str, capsys: Any
) -> None:
    path = tiny_data.image(tmp_path / "a.png")
    assert predict(model, path, out=tmp_path / "out", more=more) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_more_than_256_classes_need_16_bits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = hemnet.create_model("fcn", 300, "test_resnet", 32)
    network.head.classifier[-1].bias.data[290] = 100.0
    saved = network.save_pretrained(tmp_path / "model")
    path = tiny_data.image(tmp_path / "a.png")
    assert predict(saved, path, out=tmp_path / "out") == 0
    with Image.open(tmp_path / "out/classes/a.png") as image:
        assert set(np.unique(np.asarray(image))) == {290}
    assert lines(tmp_path / "out")[0]["shares"] == {"class 290": 1.0}


LONG = "ä" * 123  # 246 bytes


@pytest.mark.skipif(sys.platform != "linux", reason="names that other systems refuse")
def test_any_name_that_a_file_can_have(model: Path, tmp_path: Path, capsys: Any) -> None:
    names = ["x" * 251, "x" * 250 + "y", LONG, os.fsdecode(b"\xff\xfe"), "a\nb", "-", "[b]", "\\"]
    for seed, name in enumerate(names):
        tiny_data.image(tmp_path / "in" / "x.png", seed=seed)
        (tmp_path / "in" / "x.png").rename(tmp_path / "in" / f"{name}.png")
    assert predict(model, tmp_path / "in", out=tmp_path / "out") == 0
    found = lines(tmp_path / "out")
    assert {Path(line["file"]).stem for line in found} == set(names)
    assert len({line["classes"] for line in found}) == len(names)
    for line in found:
        assert (tmp_path / "out" / line["classes"]).is_file()
        assert (tmp_path / "out" / line["overlay"]).is_file()


@pytest.mark.skipif(sys.platform != "linux", reason="names that other systems refuse")
def test_a_list_of_names_that_are_no_text(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_data.image(tmp_path / "x.png").rename(tmp_path / os.fsdecode(b"\xff.png"))
    odd = [b"\xff.png", b".", b"/", b"..", b"a\0b", b"x" * 5000, b"y" * 254, b"*", b"\xc3"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n".join(odd)), "utf-8"))
    assert predict(model, "-", out=tmp_path / "out") == 1
    assert ["error" in line for line in lines(tmp_path / "out")] == [False] + 8 * [True]


def test_a_name_that_cannot_be_written_is_that_files_error(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        tiny_data.image(tmp_path / "in" / f"{name}.png")
    save = maps.save_classes

    def refuse(classes: Any, palette: Any, path: Path) -> None:
        if path.name == "a.png":
            raise OSError(errno.ENAMETOOLONG, "File name too long")
        save(classes, palette, path)

    monkeypatch.setattr("hemnet.inference.predictor.save_classes", refuse)
    assert predict(model, tmp_path / "in", out=tmp_path / "out") == 1
    assert ["error" in line for line in lines(tmp_path / "out")] == [True, False]


def tiff(width: int, height: int, compression: str, declared: tuple[int, int]) -> bytes:
    """A small TIFF in one strip whose head declares another size."""
    buffer = io.BytesIO()
    Image.effect_noise((width, height), 50).convert("1").save(
        buffer, "TIFF", compression=compression
    )
    content = bytearray(buffer.getvalue())
    (start,) = struct.unpack_from("<I", content, 4)
    for place in range(start + 2, start + 2 + 12 * content[start], 12):
        (tag,) = struct.unpack_from("<H", content, place)
        if tag in (256, 257, 278):  # width, height, rows of a strip
            value = declared[0] if tag == 256 else declared[1]
            struct.pack_into("<HII", content, place + 2, 4, 1, value)
    return bytes(content)


@pytest.mark.parametrize(
    "content, reason",
    [
        (tiff(13, 60, "group3", (13, 8_323_124)), "no side may have more"),
        (tiff(13, 60, "group4", (13, 999_999)), "cannot be in"),
        (tiff(13, 60, "group3", (13, 300_000)), "compression group3"),
        (tiff(64, 60, "group4", (2, 999_999_999)), "the limit is 150 megapixels"),
        (tiff(64, 60, "raw", (12_000, 12_000)), "cannot be in"),
    ],
)
def test_small_files_of_many_pixels(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "x.tif").write_bytes(content)
    with pytest.raises(UserError, match=reason):
        read_image(tmp_path / "x.tif")
    with pytest.raises(DataError, match=reason):
        raw_values(tmp_path / "x.tif")


def test_a_jpeg_of_many_scans(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(buffer, "JPEG", progressive=True)
    content = buffer.getvalue()
    last = content[content.rindex(b"\xff\xda") : -2]
    for scans, allowed in ((90, True), (100, False)):
        (tmp_path / "x.jpg").write_bytes(content[:-2] + last * scans + content[-2:])
        if allowed:
            read_image(tmp_path / "x.jpg")
        else:
            with pytest.raises(UserError, match="scans"):
                read_image(tmp_path / "x.jpg")


@pytest.mark.parametrize("kind", ["QOI", "DDS", "EPS", "PCX", "TGA", "ICO"])
def test_kinds_that_are_not_promised_are_not_decoded(kind: str, tmp_path: Path) -> None:
    Image.new("RGB", (16, 16)).save(tmp_path / "x.png", kind)
    with pytest.raises(UserError, match="not an image in JPEG"):
        read_image(tmp_path / "x.png")


def test_pillows_limit_comes_back(tmp_path: Path) -> None:
    before = Image.MAX_IMAGE_PIXELS
    tiny_data.image(tmp_path / "x.png")
    with open_image(tmp_path / "x.png"), open_image(tmp_path / "x.png"):
        assert Image.MAX_IMAGE_PIXELS is None
    assert before == Image.MAX_IMAGE_PIXELS is not None


def test_pipes_are_not_waited_for(model: Path, tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("no named pipes")
    os.mkfifo(tmp_path / "x.png")
    assert predict(model, tmp_path / "x.png", os.devnull, out=tmp_path / "out") == 1
    assert all("pipe" in line["error"] for line in lines(tmp_path / "out"))
