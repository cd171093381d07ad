"""Downloads against a local server that stalls, truncates, and sends the wrong file."""

import hashlib
import io
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from hemnet.data import catalog, prepare_dataset
from hemnet.data import download as archives
from hemnet.data.datasets import voc
from hemnet.data.download import Archive, download, unpack
from hemnet.errors import UserError
from support.tiny_data import ids, image, label

CONTENT = np.random.default_rng(0).integers(0, 256, 600_000, np.uint8).tobytes()
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT in the way the path names; the server counts what it was asked."""

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        server, way = self.server, self.path.strip("/").split("/")[0]
        asked = self.headers.get("Range")
        server.requests.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        number = len(server.requests)
        if way == "missing":
            return self.send_error(404)
        if way == "overloaded" and number < 3:
            return self.send_error(503)
        body, resumed = server.files.get(self.path.rsplit("/", 1)[1], CONTENT), bool(asked)
        if way == "page":
            return self.answer(200, b"<html>please log in</html>", kind="text/html")
        if way == "wrong":
            body = CONTENT[::-1]
        if way == "cannotresume":
            start, resumed = 0, False
        if start >= len(body):
            return self.send_error(416)
        body = body[start:]
        status = 206 if resumed else 200
        if way in ("truncates", "cannotresume") and number < 3:
            return self.answer(status, body[: len(body) // 2], length=len(body))
        if way == "stalls" and number < 3:
            return self.answer(status, body[: len(body) // 2], length=len(body), hold=True)
        if way == "length":
            return self.answer(status, body, length="abc")
        if way == "never":
            return self.answer(status, b"", length=len(body), hold=True)
        return self.answer(status, body)

    def answer(self, status, body, *, kind="application/x-tar", length=None, hold=False):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        if hold:
            self.server.released.wait(10)
        self.close_connection = True


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.released, server.files = [], threading.Event(), {}
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


def archive(server, way, md5=MD5):
    return Archive(f"http://127.0.0.1:{server.server_port}/{way}/file.tar", md5)


def fetch(server, way, folder, md5=MD5, tries=4):
    # Only what waits for the end of one has to be short: a busy machine answers late.
    timeout = 1 if way in ("stalls", "never") else 60
    return download(archive(server, way, md5), folder, timeout=timeout, tries=tries, pause=0)


@pytest.mark.parametrize(
    "way", ["good", "truncates", "stalls", "overloaded", "cannotresume", "length"]
)
def test_the_file_arrives_whole(server, tmp_path, way):
    path = fetch(server, way, tmp_path / "new")
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["file.tar"]


def test_broken_transfers_go_on_where_they_stopped(server, tmp_path):
    fetch(server, "truncates", tmp_path)
    assert server.requests == [None, "bytes=300000-", "bytes=450000-"]


def test_what_is_there_is_not_fetched_again(server, tmp_path):
    fetch(server, "good", tmp_path)
    fetch(server, "good", tmp_path)
    assert len(server.requests) == 1


def test_an_earlier_part_is_continued(server, tmp_path):
    (tmp_path / "file.tar.part").write_bytes(CONTENT[:1000])
    assert fetch(server, "good", tmp_path).read_bytes() == CONTENT
    assert server.requests == ["bytes=1000-"]


def test_a_part_that_was_already_whole_is_used(server, tmp_path):
    (tmp_path / "file.tar.part").write_bytes(CONTENT)
    assert fetch(server, "good", tmp_path).read_bytes() == CONTENT


def test_a_part_of_another_file_is_thrown_away(server, tmp_path):
    (tmp_path / "file.tar.part").write_bytes(b"x" * 1000)
    assert fetch(server, "good", tmp_path).read_bytes() == CONTENT
    assert server.requests == ["bytes=1000-", None]


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("wrong", "wrong or damaged file .MD5 .*expected"),
        ("page", "a web page instead of the file"),
        ("missing", "answered 404"),
    ],
)
def test_a_wrong_answer_is_said_and_leaves_nothing(server, tmp_path, way, message):
    with pytest.raises(UserError, match=message):
        fetch(server, way, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_never_sends_is_given_up_and_the_part_kept(server, tmp_path):
    (tmp_path / "file.tar.part").write_bytes(CONTENT[:1000])
    with pytest.raises(UserError, match=r"stalled, after 2 tries\. 1000 bytes are kept"):
        fetch(server, "never", tmp_path, tries=2)
    assert [p.name for p in tmp_path.iterdir()] == ["file.tar.part"]


def test_no_server_at_all(tmp_path):
    nowhere = Archive("http://127.0.0.1:9/file.tar", MD5)
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9/file\.tar: .*after 2 tries"):
        download(nowhere, tmp_path, timeout=0.3, tries=2, pause=0)


def test_without_a_published_checksum_the_zip_s_own_are_used(server, tmp_path):
    with pytest.raises(UserError, match="not a zip file"):
        fetch(server, "good", tmp_path, md5=None)
    assert list(tmp_path.iterdir()) == []


def test_unpack_zip_and_tar(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("top/inner/file.txt", "zip")
    with tarfile.open(tmp_path / "b.tgz", "w:gz") as packed:
        member = tarfile.TarInfo("top/other.txt")
        member.size = 3
        packed.addfile(member, io.BytesIO(b"tar"))
    for name in ("a.zip", "b.tgz"):
        unpack(tmp_path / name, tmp_path)
    assert (tmp_path / "top" / "inner" / "file.txt").read_text() == "zip"
    assert (tmp_path / "top" / "other.txt").read_text() == "tar"


def test_a_damaged_archive_unpacks_nothing(tmp_path):
    with tarfile.open(tmp_path / "b.tgz", "w:gz") as packed:
        for number in range(20):
            member = tarfile.TarInfo(f"top/{number}")
            member.size = 5000
            packed.addfile(member, io.BytesIO(CONTENT[number * 5000 : (number + 1) * 5000]))
    data = (tmp_path / "b.tgz").read_bytes()
    (tmp_path / "b.tgz").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"b\.tgz: cannot be unpacked"):
        unpack(tmp_path / "b.tgz", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["b.tgz"]


def packed(files):
    """A tar archive in memory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_prepare_voc_from_nothing(server, tmp_path, monkeypatch):
    scipy_io = pytest.importorskip("scipy.io")
    monkeypatch.setattr(voc, "official_ids", lambda _: {"a": "train", "b": "aug"})
    pixels = tmp_path / "pixels"
    image(pixels / "a.jpg")
    label(pixels / "a.png", ids(value=3))
    scipy_io.savemat(pixels / "b.mat", {"GTcls": {"Segmentation": ids(value=4)}})
    a, b, mask = ((pixels / name).read_bytes() for name in ("a.jpg", "b.mat", "a.png"))
    base = "VOCdevkit/VOC2012"
    server.files["voc.tar"] = packed(
        {
            f"{base}/JPEGImages/a.jpg": a,
            f"{base}/JPEGImages/b.jpg": a,
            f"{base}/SegmentationClass/a.png": mask,
        }
    )
    server.files["sbd.tar"] = packed({"benchmark_RELEASE/dataset/cls/b.mat": b})
    served = []
    for name in ("VOC", "SBD"):
        content = server.files[f"{name.lower()}.tar"]
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        url = f"http://127.0.0.1:{server.server_port}/good/{name.lower()}.tar"
        served.append(Archive(url, md5))
    brought = [path for _, path in voc.VOC.archives]
    entry = replace(voc.VOC, archives=tuple(zip(served, brought, strict=True)))
    monkeypatch.setitem(catalog.OFFICIAL, "voc", entry)
    root = tmp_path / "root"
    assert "2 labels written" in prepare_dataset("voc", root, download=True)
    made = sorted((root / base / "SegmentationClassAug").iterdir())
    assert [np.unique(Image.open(path)).tolist() for path in made] == [[3], [4]]
    assert "0 labels written" in prepare_dataset("voc", root, download=True)
    assert len(server.requests) == 2  # nothing is fetched twice


def test_nothing_is_fetched_that_anybody_on_the_way_could_change(tmp_path, monkeypatch):
    """Over TLS, and not where TLS refers to plain http."""
    known = [archive for entry in catalog.OFFICIAL.values() for archive, _ in entry.archives]
    assert len(known) >= 3
    assert all(archive.url.startswith("https://") for archive in known)

    class Answer(io.BytesIO):
        url, status = "http://elsewhere.example/x.zip", 200

    monkeypatch.setattr(archives.urllib.request, "urlopen", lambda *_, **__: Answer())
    with pytest.raises(UserError, match=r"refers to http://elsewhere\.example"):
        download(Archive("https://example.org/x.zip"), tmp_path)
    assert not list(tmp_path.iterdir())
