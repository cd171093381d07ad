"""What `python tests/fuzz.py` gives its inputs to: the program's own commands and readers."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import random
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import torch
import yaml

import hemnet
from hemnet import cli
from hemnet.app.answers import Answers
from hemnet.app.explore import Explorer
from hemnet.app.limits import Limits
from hemnet.app.routes import make_app
from hemnet.data.datasets.coco_stuff import convert_mat
from hemnet.data.download import Archive, unpack, verify
from hemnet.data.label_conversion import convert
from hemnet.errors import UserError
from hemnet.export.writers import export_model
from hemnet.nn.backbone_weights import load_weights
from hemnet.training.config_parser import dump_config, read_config
from hemnet.training.loop import train
from support import asgi, tiny_data
from support.fuzz_damage import (
    TEXTS,
    VALUES,
    damaged,
    damaged_text,
    damaged_value,
    image,
    odd_image,
)
from support.fuzzing import Case, LostError, Target
from support.tiny_runs import tiny_config

FILES = 16  # images or labels of a case


def prepare(given: Path, chosen: set[str]) -> None:
    """Sound models, a data set, and where they are asked for a run and exported files."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = hemnet.create_model(
        "hemnet", 3, "test_resnet", 16, channels=8, bases=4, classes=["kind0", "kind1", "kind2"]
    )
    model.save_pretrained(given / "model")
    if "exported" in chosen:
        for kind, name in (("onnx", "x.onnx"), ("openvino", "x.xml")):
            export_model(model, given / name, kind)
    torch.save(dict(list(model.backbone.state_dict().items())[:6]), given / "new.pth")
    torch.save(
        dict(list(model.backbone.state_dict().items())[:6]),
        given / "old.pth",
        _use_new_zipfile_serialization=False,
    )
    tiny_data.folder(given / "data", {"train": 2, "val": 2})
    if not chosen & {"arguments", "settings", "runs"}:
        return
    config = tiny_config("--optim.steps", "1", "--data.val_length", "1")
    with contextlib.redirect_stderr(io.StringIO()):
        train(config, given / "run", quiet=True)


def command(*args: object, stdin: bytes = b"") -> tuple[int, str]:
    """A command in this process: its exit code and all it says."""
    said = io.StringIO()
    source = io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), _stdin(source):
        try:
            cli.main([str(arg) for arg in args])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    text = said.getvalue()
    if "Traceback" in text or code not in (0, 1, 2):
        raise AssertionError(f"{args}: exit code {code}\n{text[-3000:]}")
    if code and not text.strip():
        raise AssertionError(f"{args}: exit code {code} without a word")
    return code, text


@contextlib.contextmanager
def _stdin(source: io.TextIOWrapper) -> Iterator[None]:
    import sys

    before, sys.stdin = sys.stdin, source
    try:
        yield
    finally:
        sys.stdin = before


def images(case: Case) -> int:
    """Damaged files among whole ones, predicted in windows or whole."""
    folder = case.folder / "in"
    for number in range(FILES):
        tiny_data.image(folder / f"{number}.png")
        if number % 8:
            (folder / f"{number}.png").write_bytes(odd_image(case.rng))
    before = content(folder)
    flags = case.rng.choice([(), ("--batch", 4), ("--whole", 0), ("--global-bases", "--whole", 0)])
    command("predict", case.given / "model", folder, "--out", case.folder / "out", *flags)
    unchanged(before, folder)
    predicted(case.folder / "out", [str(folder / "0.png"), str(folder / "8.png")], FILES)
    return FILES


def predicted(out: Path, whole: list[str], count: int) -> None:
    lines = [json.loads(text) for text in (out / "predictions.jsonl").read_text().splitlines()]
    if len(lines) != count:
        raise LostError(f"{len(lines)} lines for {count} inputs")
    named = {str(Path(line["file"]).absolute()): line for line in lines}
    for name in whole:
        if not (out / named[name].get("classes", "none")).is_file():
            raise LostError(f"{name} was whole: {named[name]}")
    nothing_half(out)


def content(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and not p.is_symlink()}


def unchanged(before: dict[Path, bytes], folder: Path) -> None:
    after = content(folder)
    for path, data in before.items():
        if after.get(path) != data:
            raise LostError(f"{path} has changed")


def nothing_half(folder: Path) -> None:
    left = [
        p for p in folder.rglob("*") if p.name.endswith(".part") or p.name.startswith(".export")
    ]
    if left:
        raise LostError(f"left half: {left[0]}")


def labels(case: Case) -> int:
    """Damaged images, labels, lists and class names of a data set."""
    root = case.folder / "data"
    shutil.copytree(case.given / "data", root)
    for number in range(FILES):
        for kind, end in (("images", "jpg"), ("labels", "png")):
            path = root / kind / "train" / f"{number}.{end}"
            whole = tiny_data.ids(value=2) if kind == "labels" else None
            if whole is not None and case.rng.random() < 0.7:
                tiny_data.label(path, whole)
                path.write_bytes(damaged(case.rng, path.read_bytes()))
            else:
                path.write_bytes(odd_image(case.rng))
    classes = root / "classes.txt"
    if case.rng.random() < 0.3:
        classes.write_bytes(damaged(case.rng, classes.read_bytes()))
    pairs = "\n".join(f"images/train/{n}.jpg labels/train/{n}.png" for n in range(FILES))
    text = damaged_text(case.rng, pairs).encode(errors="surrogateescape")
    (root / "train.txt").write_bytes(text)
    before = content(root)
    kind = case.rng.choice(["folder", "folder", "list"])
    command("data", "check", kind, "--root", root, "--workers", 1, "--json", case.folder / "r.json")
    if case.rng.random() < 0.3:
        place = case.folder / "sheet.png"
        command("data", "show", kind, "--root", root, "--count", 2, "--crop", 32, "--out", place)
    if case.rng.random() < 0.3:
        classes.unlink()
        command("data", "prepare", "folder", "--root", root)
        before.pop(classes)
    unchanged(before, root)
    nothing_half(case.folder)
    return 2 * FILES


def names(case: Case) -> int:
    """Files with any name, in folders, as arguments and on standard input."""
    folder = os.fsencode(case.folder / "in")
    os.mkdir(folder)
    written = []
    for number in range(FILES):
        name = case.rng.randbytes(case.rng.choice([1, 3, 30, 250, 251])).replace(b"/", b"")
        if case.rng.random() < 0.5:
            name = os.fsencode(case.rng.choice(TEXTS)).replace(b"/", b"")[:250]
        name = name.replace(b"\0", b"") or b"%d" % number
        path = os.path.join(folder, name + case.rng.choice([b".png", b".PNG", b".jpg"]))
        with contextlib.suppress(OSError), open(path, "wb") as file:
            file.write(image(case.rng, "PNG"))
            written.append(path)
    written = sorted(set(written))
    out = case.folder / "out"
    if case.rng.random() < 0.5:
        command("predict", case.given / "model", os.fsdecode(folder), "--out", out)
        predicted(out, [os.fsdecode(path) for path in written if b".\n" not in path], len(written))
    else:
        lines = written + [os.fsencode(text) for text in case.rng.sample(TEXTS, 5)]
        command("predict", case.given / "model", "-", "--out", out, stdin=b"\n".join(lines))
        nothing_half(out)
    return FILES


ARGUMENTS: list[tuple[str, ...]] = [
    ("data", "check", "folder", "--root", "DATA", "--classes", "?"),
    ("data", "check", "folder", "--root", "DATA", "--label-map", "?"),
    ("data", "check", "folder", "--root", "?"),
    ("data", "check", "list", "--root", "?", "--classes", "3"),
    ("data", "check", "?", "--root", "DATA"),
    ("data", "check", "folder", "--root", "DATA", "--split", "?"),
    ("data", "check", "folder", "--root", "DATA", "--json", "?"),
    ("data", "show", "scenes", "--size", "32", "--count", "2", "--out", "?"),
    ("data", "show", "scenes", "--size", "?", "--count", "2"),
    ("data", "show", "scenes", "--size", "32", "--count", "2", "--tile", "?"),
    ("data", "show", "scenes", "--size", "32", "--count", "?"),
    ("data", "show", "scenes", "--size", "32", "--count", "2", "--jitter", "?"),
    ("data", "show", "scenes", "--size", "32", "--count", "2", "--columns", "?"),
    ("data", "show", "scenes", "--size", "32", "--count", "2", "--crop", "?"),
    ("data", "show", "scenes", "--size", "32", "--count", "2", "--seed", "?"),
    ("data", "show", "scenes", "--length", "?", "--size", "32", "--count", "2"),
    ("data", "prepare", "folder", "--root", "?"),
    ("data", "prepare", "voc", "--root", "?"),
    ("evaluate", "?"),
    ("evaluate", "RUN", "--data.length", "1", "--json", "?"),
    ("evaluate", "RUN", "--data.length", "1", "--scales", "?"),
    ("evaluate", "RUN", "--data.length", "1", "--window", "?"),
    ("evaluate", "RUN", "--data.length", "1", "--window", "16", "--overlap", "?"),
    ("evaluate", "RUN", "--data.length", "1", "--iterations", "?"),
    ("evaluate", "RUN", "--data.length", "1", "--batch", "?"),
    ("evaluate", "RUN", "--data.length", "1", "--split", "?"),
    ("evaluate", "RUN", "--data.length", "?", "--batch", "9"),
    ("evaluate", "RUN", "--data.length", "1", "--out", "?"),
    ("evaluate", "RUN", "--data.name", "?"),
    ("predict", "MODEL", "?", "--out", "out"),
    ("predict", "?", "PHOTO", "--out", "out"),
    ("predict", "MODEL", "PHOTO", "--out", "?"),
    ("predict", "MODEL", "PHOTO", "--out", "out", "--whole", "?"),
    ("predict", "MODEL", "PHOTO", "--out", "out", "--max-pixels", "?"),
    ("predict", "MODEL", "PHOTO", "--out", "out", "--scales", "?"),
    ("predict", "MODEL", "PHOTO", "--out", "out", "--window", "?", "--whole", "0"),
    ("predict", "MODEL", "PHOTO", "--out", "out", "--workers", "?"),
    ("predict", "MODEL", "PHOTO", "--out", "out", "--device", "?"),
    ("export", "?", "--out", "x.onnx"),
    ("export", "MODEL", "--out", "?"),
    ("export", "MODEL", "--out", "x.onnx", "--json", "?"),
    ("export", "MODEL", "--out", "x.onnx", "--iterations", "0"),
    ("costs", "--backbone", "test_resnet", "--size", "?"),
    ("costs", "--backbone", "?"),
    ("costs", "--backbone", "test_resnet", "--json", "?"),
    ("costs", "--backbone", "test_resnet", "--batch", "?"),
    ("costs", "--backbone", "test_resnet", "--num-classes", "?"),
    ("costs", "--backbone", "test_resnet", "--channels", "?"),
    ("costs", "--model", "?"),
    ("train", "--config", "?", "--out", "run"),
    ("train", "--resume", "--out", "?"),
    ("train", "--config", "CONFIG", "--out", "?"),
    ("app", "?"),
    ("app", "MODEL", "--max-upload", "?", "--host", "300.0.0.1"),
    ("app", "MODEL", "--host", "?", "--port", "99999"),
    ("study", "iterations", "?", "--out", "study"),
    ("study", "attention", "RUN", "--image", "?", "--out", "study"),
    ("study", "attention", "?", "--out", "study"),
    ("?",),
    ("data", "?"),
]


def arguments(case: Case) -> int:
    """Odd values of one flag of any command, whose other flags are sound."""
    places = {"DATA": "data", "RUN": "run", "MODEL": "model", "CONFIG": "run/config.yaml"}
    for name in ("data", "run", "model"):
        shutil.copytree(case.given / name, case.folder / name)
    tiny_data.image(case.folder / "photo.png")
    Path("pipe").touch()
    os.unlink("pipe")
    os.mkfifo("pipe")
    before = content(case.folder)
    value = case.rng.choice([*TEXTS, "pipe", "data", "photo.png", "run/config.yaml", "model"])
    line = case.rng.choice(ARGUMENTS)
    writes = any(f in line[:-1] and line[line.index(f) + 1] == "?" for f in ("--out", "--json"))
    if writes and (value.startswith("/") or ".." in value):  # nothing is written elsewhere
        value = "written" + value.replace("..", "__")
    chosen = [
        value if word == "?" else "photo.png" if word == "PHOTO" else places.get(word, word)
        for word in line
    ]
    command(*chosen, stdin=b"pipe\n")
    if not (writes and "\0" not in value and os.path.isfile(case.folder / value)):
        unchanged(before, case.folder)
    return 1


def settings(case: Case) -> int:
    """Damaged configurations: read, or refused; what is read comes back as it was."""
    text = (case.given / "run" / "config.yaml").read_text()
    if case.rng.random() < 0.6:
        text = json.dumps(damaged_value(case.rng, yaml.safe_load(text)))
    else:
        text = damaged_text(case.rng, text)
    data = text.encode(errors="surrogateescape")
    (case.folder / "c.yaml").write_bytes(
        damaged(case.rng, data) if case.rng.random() < 0.1 else data
    )
    flags = []
    if case.rng.random() < 0.3:
        key = case.rng.choice(
            ["optim.lr", "data.crop", "model.options", "data.label_map", "run.seed"]
        )
        flags = [f"--{key}", str(case.rng.choice(VALUES))]
    try:
        config = read_config(case.folder / "c.yaml", flags)
    except UserError as error:
        if len(str(error)) > 5000:
            raise AssertionError(f"a message of {len(str(error))} characters") from None
        return 1
    (case.folder / "d.yaml").write_text(dump_config(config))
    again = read_config(case.folder / "d.yaml")
    assert dump_config(again) == dump_config(config)
    return 1


def runs(case: Case) -> int:
    """A run folder with a damaged file: resumed, evaluated, used and reported."""
    run = case.folder / "run"
    shutil.copytree(case.given / "run", run)
    last = run / "checkpoints" / "last.safetensors"
    files = [p for p in sorted(run.rglob("*")) if p.is_file() and "tensorboard" not in p.parts]
    path = case.rng.choice(files)
    data = path.read_bytes()
    way = case.rng.random()
    if way < 0.1:
        path.unlink()
        if case.rng.random() < 0.5:
            path.mkdir()
    elif path.suffix in (".json", ".jsonl", ".yaml") and way < 0.6:
        first = data.splitlines()[0] if path.suffix == ".jsonl" else data
        line = yaml.safe_load(first)  # JSON too
        path.write_text(json.dumps(damaged_value(case.rng, line)) + "\n")
    elif path.suffix == ".safetensors" and way < 0.6:
        path.write_bytes(damaged_safetensors(case.rng, data))
    else:
        path.write_bytes(damaged(case.rng, data))
    before = last.read_bytes() if last.is_file() else None
    config = run / "config.yaml"
    small: tuple[str, ...] = ("--run.device", "cpu")
    if path == config:  # damaged, it may ask for much, which is no mistake: not here
        small += ("--allow-changes", "--optim.steps", "1", "--data.size", "48")
        small += ("--data.crop", "[48, 48]", "--data.length", "10", "--data.val_length", "1")
    if path != config or case.rng.random() < 0.2:
        code, _ = command("train", "--resume", "--out", run, *small)
        if before is not None and code and last.read_bytes() != before:
            raise LostError("the last checkpoint has changed")
    if path != config:
        command("evaluate", run, "--data.length", "1", *case.rng.choice([(), ("--report",)]))
        tiny_data.image(case.folder / "x.png")
        command("predict", run, "x.png", "--out", "out")
    return 1


def damaged_safetensors(rng: random.Random, data: bytes) -> bytes:
    """Another head: names, shapes, types, offsets or metadata changed."""
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])
    head = json.dumps(damaged_value(rng, head)).encode(errors="backslashreplace")
    return len(head).to_bytes(8, "little") + head + data[8 + length :]


def models(case: Case) -> int:
    """Saved models with a damaged description or file of weights."""
    shutil.copytree(case.given / "model", case.folder / "model")
    config, weights = case.folder / "model" / "config.json", case.folder / "model/model.safetensors"
    way = case.rng.random()
    if way < 0.5:
        found = json.loads(config.read_text())
        if case.rng.random() < 0.5:
            found["options"] = damaged_value(case.rng, found["options"])
        else:
            found = damaged_value(case.rng, found)
        config.write_text(json.dumps(found))
    elif way < 0.75:
        weights.write_bytes(damaged_safetensors(case.rng, weights.read_bytes()))
    else:
        path = case.rng.choice([config, weights])
        path.write_bytes(damaged(case.rng, path.read_bytes()))
    tiny_data.image(case.folder / "x.png")
    command("predict", "model", "x.png", "--out", "out")
    return 1


def weights(case: Case) -> int:
    """Backbone weights that torch or safetensors wrote, damaged."""
    module = hemnet.from_pretrained(case.given / "model").backbone
    state = {name: value.clone() for name, value in module.state_dict().items()}
    for number in range(8):
        name = case.rng.choice(["new.pth", "old.pth", "model/model.safetensors"])
        path = case.folder / f"{number}{Path(name).suffix}"
        path.write_bytes(damaged(case.rng, (case.given / name).read_bytes()))
        try:
            load_weights(module, path)
        except UserError:
            for key, value in module.state_dict().items():
                if not torch.equal(value, state[key]):
                    raise LostError(f"{key} changed though the file was refused") from None
        else:
            module.load_state_dict(state)
    return 8


def exported(case: Case) -> int:
    """Damaged ONNX and OpenVINO files."""
    kind = case.rng.choice(["x.onnx", "x.onnx", "x.xml"])
    for name in ("x.xml", "x.bin", "x.onnx"):
        shutil.copy(case.given / name, case.folder)
    path = case.folder / kind
    data = path.read_bytes()
    if kind == "x.xml":
        path.write_bytes(damaged_text(case.rng, data.decode()).encode(errors="surrogateescape"))
    else:
        path.write_bytes(damaged(case.rng, data))
    tiny_data.image(case.folder / "y.png")
    command("predict", kind, "y.png", "--out", "out")
    return 1


def archives(case: Case) -> int:
    """Damaged and hostile archives and .mat files."""
    for number in range(8):
        inside = case.folder / f"into{number}"
        inside.mkdir()
        path = case.folder / f"{number}.zip"
        odd = case.rng.choice(
            ["a.txt", "../out.txt", "/tmp/hemnet-fuzz-out.txt", "a/../../b", "x" * 300]
        )
        if case.rng.random() < 0.5:
            with zipfile.ZipFile(path, "w", case.rng.choice([0, 8, 12, 14])) as packed:
                packed.writestr(odd, b"content" * 50)
                packed.writestr("other.txt", b"other")
        else:
            with tarfile.open(path, "w:" + case.rng.choice(["", "gz", "xz"])) as bundle:
                entry = tarfile.TarInfo(odd)
                kinds = [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
                entry.type, entry.linkname = case.rng.choice(kinds), "/etc/passwd"
                bundle.addfile(entry, io.BytesIO())
        if case.rng.random() < 0.8:
            path.write_bytes(damaged(case.rng, path.read_bytes()))
        before = {p: p.stat().st_mtime_ns for p in case.folder.iterdir() if p != inside}
        verify(path, Archive("https://example.org/x.zip"))
        with contextlib.suppress(UserError):
            unpack(path, inside)
        if {p: p.stat().st_mtime_ns for p in case.folder.iterdir() if p != inside} != before:
            raise LostError("something outside has changed")
        if Path("/tmp/hemnet-fuzz-out.txt").exists():
            raise LostError("a file was written outside")
        mat = case.folder / f"{number}.mat"
        need_mat(mat)
        mat.write_bytes(damaged(case.rng, mat.read_bytes()))
    jobs = [(p, p.with_suffix(".png")) for p in sorted(case.folder.glob("*.mat"))]
    for job in jobs:  # each alone: the first that is damaged ends the conversion of all
        with contextlib.suppress(UserError):
            convert(convert_mat, [job])
    nothing_half(case.folder)
    return 16


def need_mat(path: Path) -> None:
    from scipy.io import savemat

    savemat(path, {"S": np.zeros((8, 8), np.uint8)}, do_compression=path.name > "4")


def app(case: Case) -> int:
    """Odd requests to the explorer, and odd images in them."""
    model = hemnet.from_pretrained(case.given / "model")
    folder = case.folder / "own"
    folder.mkdir()
    answers = Answers(Explorer(model), Limits(bytes=100_000, side=64), folder)
    app = make_app(answers)

    async def all_of_them() -> None:
        await ask(case.rng, app, "/image", image(case.rng))
        for _ in range(24):
            await odd_request(case.rng, app)

    asyncio.run(all_of_them())
    if list(folder.iterdir()):
        raise LostError("the app has left a file")
    return 25


async def ask(rng: random.Random, app: Any, path: str, body: bytes, *more: Any) -> None:
    kind = asgi.IMAGE_TYPE if path == "/image" else asgi.JSON_TYPE
    query = urlencode({"session": asgi.KEY, "name": "x.png"})
    headers = (asgi.HOME, kind, *more)
    where = f"{path}?{query}" if path == "/image" else path
    check_answer(await asgi.send(app, "POST", where, [body], headers=headers))


def check_answer(answer: Any) -> None:
    if answer.status >= 400:
        assert answer.error
    assert answer.status < 400 or "Traceback" not in answer.body.decode()


async def odd_request(rng: random.Random, app: Any) -> None:
    way = rng.randrange(6)
    if way == 0:
        await ask(rng, app, "/image", odd_image(rng))
    elif way in (1, 2):
        fields = damaged_value(rng, asgi.VIEW | {"iterations": 3, "shown": 2, "step_size": 0.5})
        await ask(rng, app, rng.choice(["/view", "/view", "/sample", "/leave"]), dumped(fields))
    elif way == 3:
        name = rng.choice([b"host", b"origin", b"sec-fetch-site", b"content-length", b"x"])
        value = rng.choice(TEXTS).encode(errors="replace")[:3000]
        await ask(rng, app, "/view", dumped(asgi.VIEW), (name, value))
    elif way == 4:
        await ask(rng, app, "/view", damaged(rng, dumped(asgi.VIEW)))
    else:
        query = urlencode(
            {"session": rng.choice([asgi.KEY, *TEXTS[:8]]), "name": "x"}, errors="replace"
        )
        path = rng.choice(["/class-map", "/", "/page.js", "/image", "/%00", "/../x"])
        method = rng.choice(["GET", "HEAD", "POST", "PUT"])
        answer = await asgi.send(app, method, f"{path}?{query}")
        if method != "HEAD":
            check_answer(answer)


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


TARGETS: dict[str, Target] = {
    "images": Target(images, 190),
    "labels": Target(labels, 75),
    "names": Target(names, 40),
    "arguments": Target(arguments, 1000),
    "settings": Target(settings, 1000),
    "runs": Target(runs, 350),
    "models": Target(models, 800),
    "weights": Target(weights, 75),
    "exported": Target(exported, 250),
    "archives": Target(archives, 45),
    "app": Target(app, 90),
}
