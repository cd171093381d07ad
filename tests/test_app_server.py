"""`hemnet app` as a program: real connections, raw nonsense, and what its log says of them."""

from __future__ import annotations

import http.client
import io
import json
import random
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from PIL import Image

from hemnet.app.server import listen
from support import app_server
from support.asgi import FILE, KEY, VIEW, png

pytest.importorskip("uvicorn")
CUT_OFF = 0
JSON_TYPE = {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
def its_log_stays_as_it_is(server: app_server.Server) -> Iterator[None]:
    before = server.log.read_text()
    yield
    assert server.log.read_text() == before
    assert not list(server.folder.iterdir())  # nothing is kept on disk either


def ask(
    server: app_server.Server,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=bool(headers and "Host" in headers))
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        if body is not None and "Content-Length" not in (headers or {}):
            connection.putheader("Content-Length", str(len(body)))
        try:
            connection.endheaders(body)
            answer = connection.getresponse()
        except (ConnectionResetError, BrokenPipeError):  # refused while it was still being sent
            return CUT_OFF, b""
        return answer.status, answer.read()
    finally:
        connection.close()


def upload(
    server: app_server.Server, content: bytes, name: str = "mine.png", **headers: str
) -> tuple[int, bytes]:
    path = "/image?" + urlencode({"session": KEY, "name": name})
    kind = {"Content-Type": "application/octet-stream"}
    more = {key.replace("_", "-"): value for key, value in headers.items()}
    return ask(server, "POST", path, content, kind | more)


def alive(server: app_server.Server) -> bool:
    return server.process.poll() is None and ask(server, "GET", "/")[0] == 200


def test_an_upload_is_looked_at(server: app_server.Server) -> None:
    code, text = upload(server, png())
    assert code == 200
    assert "mine.png: 32×24 pixels" in json.loads(text)["status"]
    code, text = ask(server, "GET", f"/class-map?session={KEY}")
    assert (code, text[:8]) == (200, b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("path", ["/etc/hostname", "/dev/zero", "SECRET"])
def test_files_of_the_server_cannot_be_named(server: app_server.Server, path: str) -> None:
    """The reproduction of issue 20: a dictionary that Gradio took for a file."""
    path = path.replace("SECRET", str(server.work / "secret.txt"))
    upload(server, png())
    body = json.dumps(VIEW | {"bases": FILE | {"path": path}}).encode()
    code, text = ask(server, "POST", "/view", body, JSON_TYPE)
    assert code == 400
    assert json.loads(text) == {"error": "bases: expected a list of at most 12 numbers"}
    for place in ("/gradio_api/queue/join", "/gradio_api/upload", f"/gradio_api/file={path}"):
        for method in ("GET", "POST"):
            assert ask(server, method, place, b"{}", JSON_TYPE)[0] == 404
    assert alive(server)


@pytest.mark.parametrize(
    "path",
    [
        *("/../../../../../../etc/passwd", "/..%2f..%2f..%2fetc/passwd", "//etc/passwd"),
        *("/%2e%2e/%2e%2e/routes.py", "/file=/etc/passwd", "/page.js%0a", "/%00", "/secret.txt"),
    ],
)
def test_no_path_leads_to_a_file(server: app_server.Server, path: str) -> None:
    code, text = ask(server, "GET", path)
    assert code == 404
    assert list(json.loads(text)) == ["error"]


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Sec_Fetch_Site": "cross-site"}, {"Origin": "null"}],
)
def test_other_sites_cannot_upload(server: app_server.Server, headers: dict[str, str]) -> None:
    code, text = upload(server, png(), **headers)
    assert code == 403
    assert "another site" in json.loads(text)["error"]
    own = {"Origin": server.url, "Sec_Fetch_Site": "same-origin"}
    assert upload(server, png(), **own)[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "", "127.0.0.1.evil.example", "[::1].evil.com", "[::1", "a b"]
)
def test_answers_only_to_its_own_name(server: app_server.Server, host: str) -> None:
    assert ask(server, "GET", "/", headers={"Host": host})[0] in (400, 403)
    assert ask(server, "GET", "/", headers={"Host": f"localhost:{server.port}"})[0] == 200


def test_only_this_computer_unless_told() -> None:
    with listen("127.0.0.1", None) as place, listen("127.0.0.1", None) as other:
        assert place.getsockname()[0] == "127.0.0.1"
        assert other.getsockname()[1] != place.getsockname()[1]  # the next free one


def test_a_form_is_not_read(server: app_server.Server) -> None:
    """A boundary of 5,000 characters, and a text field where a file was expected."""
    for boundary in ("x" * 5000, "q"):
        form = f'--{boundary}\r\nContent-Disposition: form-data; name="files"\r\n\r\nx\r\n'
        kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        path = f"/image?session={KEY}&name=x.png"
        assert ask(server, "POST", path, form.encode(), kind)[0] == 415


def test_uploads_end_at_the_limit(server: app_server.Server) -> None:
    assert upload(server, bytes(500_000))[0] == 422  # no image, and not too large
    assert upload(server, bytes(500_001))[0] in (413, CUT_OFF)
    assert upload(server, bytes(5_000_000))[0] in (413, CUT_OFF)
    assert ask(server, "POST", "/view", bytes(30_000), JSON_TYPE)[0] in (413, CUT_OFF)
    assert upload(server, b"", Content_Length="9" * 18)[0] == 413
    assert alive(server)


def test_a_body_in_pieces_ends_at_the_limit(server: app_server.Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as link:
        link.sendall(
            b"POST /view HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        try:
            for _ in range(4):
                link.sendall(b"1F40\r\n" + b" " * 8_000 + b"\r\n")
                time.sleep(0.01)
            answer = link.recv(4096)
        except OSError:  # it no longer listens
            answer = b"HTTP/1.1 413"
    assert answer.startswith(b"HTTP/1.1 413")
    assert alive(server)


def test_decoders_write_nothing_into_the_log(server: app_server.Server) -> None:
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(buffer, "TIFF", compression="tiff_lzw")
    content = buffer.getvalue()
    for damaged in (content[:9] + b"\xff" * 40 + content[49:], content[:-2000] + bytes(2000)):
        assert upload(server, damaged)[0] in (200, 422)  # the fixture looks at the log


# Raw nonsense

POST = b"POST /view HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
RAW = [
    b"\x00\xff\xfe nonsense \r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 300_000 + b"\r\n\r\n",
    b"GET /\xff\xfe%%%zz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    POST + b"Content-Length: -5\r\n\r\n",
    POST + b"Content-Length: abc\r\n\r\n",
    POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    POST + b"Content-Length: 99\r\n\r\nshort",
    POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    POST + b"Transfer-Encoding: gzip\r\n\r\nzz\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
]


def say(server: app_server.Server, content: bytes) -> bytes:
    """What is answered to raw bytes, if anything, once no more of them come."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:
        try:
            link.sendall(content)
            link.shutdown(socket.SHUT_WR)
            return link.recv(4096)
        except OSError:  # closed
            return b""


@pytest.mark.parametrize("content", RAW)
def test_raw_nonsense_does_not_take_it_down(server: app_server.Server, content: bytes) -> None:
    assert not say(server, content).startswith(b"HTTP/1.1 5")
    assert alive(server)


def test_hundreds_of_damaged_requests(server: app_server.Server) -> None:
    rng = random.Random(20)
    body = json.dumps(VIEW).encode()
    whole = POST + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    for _ in range(400):
        damaged = bytearray(rng.choice([whole, *RAW[:4], *RAW[5:]]))
        for _ in range(rng.randrange(1, 8)):
            damaged[rng.randrange(len(damaged))] = rng.choice(b'\0\r\n :/%[]{}"\xff09Aa')
        assert not say(server, bytes(damaged)).startswith(b"HTTP/1.1 5")
    assert alive(server)
