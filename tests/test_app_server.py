"""`hemnet app` as a server: what it refuses, and that nothing takes it down."""

import asyncio
import http.client
import io
import json
import socket
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import app_server
from hemnet.app.limits import Limits
from hemnet.app.server import ENVELOPE, SMALL, Guard, is_loopback, listen, prepare
from hemnet.errors import UserError
from test_app import answers

API = "/gradio_api"
CUT_OFF = 0


def ask(
    server: app_server.Server,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
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


def upload(server: app_server.Server, name: str, content: bytes) -> tuple[int, bytes]:
    head = (
        f'--cut\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n'
        "Content-Type: image/png\r\n\r\n"
    )
    body = head.encode() + content + b"\r\n--cut--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=cut"}
    return ask(server, "POST", f"{API}/upload", body, kind)


def png(width: int = 32, height: int = 24) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(buffer, "PNG")
    return buffer.getvalue()


def handler(server: app_server.Server, name: str) -> dict[str, Any]:
    """Number and inputs of what the page calls when something is touched."""
    config = json.loads(ask(server, "GET", "/config")[1])
    ids = {c["props"].get("elem_id"): c["id"] for c in config["components"]}
    element, event = name.split(".")
    return next(
        d for d in config["dependencies"] if [ids[element], event] in map(list, d["targets"])
    )


def call(
    server: app_server.Server, function: int, data: list[Any], session: str, **more: Any
) -> dict[str, Any]:
    """As the page does it: join the queue, and listen for what comes of it."""
    body = {"data": data, "fn_index": function, "session_hash": session, "trigger_id": 1, **more}
    code, text = ask(
        *(server, "POST", f"{API}/queue/join", json.dumps(body).encode()),
        {"Content-Type": "application/json"},
    )
    if code != 200:
        return {"code": code, "text": text}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("GET", f"{API}/queue/data?session_hash={session}")
        answer = connection.getresponse()
        while line := answer.readline():
            if line.startswith(b"data:"):
                message = json.loads(line[5:])
                if message.get("msg") == "process_completed":
                    return message
    finally:
        connection.close()
    raise AssertionError("no answer")


def upload_and_look(server: app_server.Server, path: str, session: str) -> dict[str, Any]:
    file = {"path": path, "orig_name": "x.png", "meta": {"_type": "gradio.FileData"}}
    return call(server, handler(server, "upload.upload")["id"], [file], session)


def alive(server: app_server.Server) -> bool:
    return server.process.poll() is None and ask(server, "GET", "/")[0] == 200


# Files


def test_an_upload_can_be_looked_at_and_read_back(server: app_server.Server) -> None:
    code, text = upload(server, "mine.png", png())
    assert code == 200
    (path,) = json.loads(text)
    assert Path(path).resolve().is_relative_to(server.folder)
    found = ask(server, "GET", f"{API}/file={urllib.parse.quote(path)}")
    assert found == (200, png())
    answer = upload_and_look(server, path, "reader1")
    assert answer["success"]
    assert "mine.png: 32×24 pixels" in str(answer["output"]["data"])


@pytest.mark.parametrize(
    "path",
    [
        *(f"{API}/file=/etc/passwd", f"{API}/file=../../../../../../etc/passwd"),
        *(f"{API}/file=%2Fetc%2Fpasswd", f"{API}/file=%252Fetc%252Fpasswd"),
        *(f"{API}/file=//etc/passwd", f"{API}/file=file:///etc/passwd", f"{API}/file=secret.txt"),
        *(f"{API}/file=FOLDER/../../../../../../../../etc/passwd", f"{API}/file=FOLDER"),
        *(f"{API}/file=WORK/secret.txt", f"{API}/file=MODEL/config.json"),
        *(f"{API}/file=FOLDER/%00/etc/passwd", f"{API}/file=", f"{API}/file=http://127.0.0.1/"),
        *(f"{API}/file//etc/passwd", "/file=/etc/passwd", "/file//etc/passwd"),
        *("/static/../../../../../../../etc/passwd", "/assets/..%2f..%2f..%2fetc/passwd"),
        *("/static/%2e%2e/%2e%2e/%2e%2e/blocks.py", "//etc/passwd", "/svelte//etc/passwd"),
    ],
)
def test_nothing_outside_its_folder_can_be_read(server: app_server.Server, path: str) -> None:
    places = {"FOLDER": server.folder, "WORK": server.work, "MODEL": server.model}
    for name, place in places.items():
        path = path.replace(name, str(place))
    code, text = ask(server, "GET", path)
    assert code in (400, 403, 404)
    for secret in (b"root:", b"the secret", b"num_classes", b"import "):
        assert secret not in text


@pytest.mark.parametrize("name", ["/etc/passwd", "WORK/secret.txt", "http://127.0.0.1:1/x.png"])
def test_a_look_takes_only_what_was_uploaded(server: app_server.Server, name: str) -> None:
    path = name.replace("WORK", str(server.work))
    answer = upload_and_look(server, path, "thief")
    assert not answer.get("success")
    assert "root:" not in str(answer)
    assert alive(server)


def test_the_name_of_an_upload_leads_nowhere(server: app_server.Server) -> None:
    before = set(server.work.parent.rglob("*.png")) - set(server.folder.rglob("*.png"))
    code, text = upload(server, "../../../../../../../../tmp/evil/../x.png", png(5, 5))
    if code == 200:
        for path in json.loads(text):
            assert Path(path).resolve().is_relative_to(server.folder)
    assert set(server.work.parent.rglob("*.png")) - set(server.folder.rglob("*.png")) == before


# What it does not do


@pytest.mark.parametrize(
    "path",
    [
        *("/docs", "/openapi.json", "/monitoring", "/monitoring/summary", f"{API}/deep_link"),
        *(f"{API}/proxy=https://example.org/x", f"{API}/vibe-code", f"{API}/runs", "/login"),
        *(f"{API}/run/predict", f"{API}/call/x", f"{API}/stream/x", f"{API}/openapi.json"),
        *(f"{API}/custom_component/x/client/component/x.js", f"{API}/dev/reload", "/pwa_icon"),
    ],
)
def test_what_the_page_does_not_need_is_not_there(server: app_server.Server, path: str) -> None:
    for method in ("GET", "POST"):
        assert ask(server, method, path, b"{}" if method == "POST" else None)[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example"])
def test_answers_only_to_its_own_name(server: app_server.Server, host: str) -> None:
    assert ask(server, "GET", "/config", headers={"Host": host})[0] in (400, 403)
    assert ask(server, "GET", "/config", headers={"Host": f"localhost:{server.port}"})[0] == 200


def test_says_what_the_browser_may_load(server: app_server.Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/")
    answer = connection.getresponse()
    answer.read()
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_only_this_computer_unless_told() -> None:
    with listen("127.0.0.1", None) as place, listen("127.0.0.1", None) as other:
        assert place.getsockname()[0] == "127.0.0.1"
        assert other.getsockname()[1] != place.getsockname()[1]  # the next free one
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    for host in ("0.0.0.0", "192.168.1.7", "::", "localhost.evil.example", ""):
        assert not is_loopback(host)


# Sizes


def test_uploads_end_at_the_limit(server: app_server.Server) -> None:
    assert upload(server, "big.png", bytes(400_000))[0] == 200
    assert upload(server, "bigger.png", bytes(510_000))[0] == 413  # by the part
    assert upload(server, "huge.png", bytes(5_000_000))[0] in (413, CUT_OFF)  # by its announcement
    assert ask(server, "POST", f"{API}/queue/join", bytes(SMALL + 1))[0] in (413, CUT_OFF)
    assert alive(server)


def test_a_body_in_pieces_ends_at_the_limit(server: app_server.Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as link:
        link.sendall(
            f"POST {API}/queue/join HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        try:
            for _ in range(2 + SMALL // 60_000):
                link.sendall(b"EA60\r\n" + b" " * 60_000 + b"\r\n")
                time.sleep(0.01)
            answer = link.recv(4096)
        except OSError:  # it no longer listens
            answer = b"HTTP/1.1 413"
    assert answer.startswith(b"HTTP/1.1 413")
    assert alive(server)


# Malformed requests


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\xff\xfe nonsense \r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 300_000 + b"\r\n\r\n",
        b"POST /gradio_api/upload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\nshort",
        b"POST /gradio_api/upload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n"
        b"Content-Type: multipart/form-data; boundary=q\r\n\r\nabcd",
        b"GET /gradio_api/queue/data HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /\xff\xfe%%%zz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    ],
)
def test_raw_nonsense_does_not_take_it_down(server: app_server.Server, content: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:
        try:
            link.sendall(content)
            link.settimeout(0.5)
            link.recv(4096)
        except OSError:  # closed, or nothing to say
            pass
    assert alive(server)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"data": 5}', b"[" * 50_000),
        *(b'{"data": [], "fn_index": 99999, "session_hash": "q"}',),
        *(b'{"data": [], "fn_index": -1, "session_hash": "q"}',),
        *(b'{"data": null, "fn_index": "x", "session_hash": {}}',),
    ],
)
def test_requests_that_make_no_sense(server: app_server.Server, body: bytes) -> None:
    code, _ = ask(server, "POST", f"{API}/queue/join", body, {"Content-Type": "application/json"})
    assert code >= 400
    assert alive(server)


@pytest.mark.parametrize(
    "name", ["upload.upload", "iterations.input", "shown.input", "explain.click", "adopt.click"]
)
def test_handlers_survive_any_values(server: app_server.Server, name: str) -> None:
    what = handler(server, name)
    for value in (None, "x", [], {}, 1e308, -1, [[]] * 3, "NaN"):
        answer = call(server, what["id"], [value] * len(what["inputs"]), "confused")
        assert "Traceback" not in str(answer)
    assert alive(server)


def test_events_without_what_they_need(server: app_server.Server) -> None:
    what = handler(server, "samples.click")
    for event in (None, {}, {"sample": "x"}, {"sample": 99}, {"sample": [0]}, 7):
        answer = call(server, what["id"], [], "empty", event_data=event)
        assert "Traceback" not in str(answer)
    good = call(server, what["id"], [], "empty", event_data={"sample": 1})
    assert "scene 2: 160×128 pixels" in str(good["output"]["data"])


def test_a_page_that_was_never_opened_is_told_so(server: app_server.Server) -> None:
    what = handler(server, "explain.click")
    config = json.loads(ask(server, "GET", "/config")[1])
    values = {c["id"]: c["props"].get("value") for c in config["components"]}
    answer = call(server, what["id"], [values[i] for i in what["inputs"]], "stranger")
    assert "Choose an image again" in str(answer["output"]["data"])


# The guard alone


def guarded(path: str, pieces: list[bytes], limits: Limits, tmp_path: Path) -> int:
    """Status of a request whose body comes in pieces of unannounced size."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": path, "headers": [(b"host", b"127.0.0.1:80")]
    }  # fmt: skip
    asyncio.run(Guard(app, tmp_path, limits, loopback=True)(scope, receive, send))
    return sent[0]["status"]


def test_counts_what_comes(tmp_path: Path) -> None:
    limits = Limits(bytes=1000)
    assert guarded(f"{API}/queue/join", [bytes(SMALL)], limits, tmp_path) == 200
    assert guarded(f"{API}/queue/join", [bytes(SMALL), b"x"], limits, tmp_path) == 413
    most = 1000 + ENVELOPE
    assert guarded(f"{API}/upload", [bytes(most)], limits, tmp_path) == 200
    assert guarded(f"{API}/upload", [bytes(most - 5), bytes(6)], limits, tmp_path) == 413


def test_uploads_do_not_fill_the_disk(tmp_path: Path) -> None:
    (tmp_path / "before.png").write_bytes(bytes(3000))
    limits = Limits(bytes=1000, folder=2000)
    assert guarded(f"{API}/upload", [bytes(100)], limits, tmp_path) == 200
    assert not (tmp_path / "before.png").exists()


# The page alone


def make_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("gradio")
    for variable in ("GRADIO_TEMP_DIR", "GRADIO_EXAMPLES_CACHE", "GRADIO_ANALYTICS_ENABLED"):
        monkeypatch.setenv(variable, "")  # is put back afterwards
    prepare(tmp_path)
    from hemnet.app.page import Page

    return Page(answers(tmp_path, name))


def test_fetches_nothing_that_a_request_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = make_page("hemnet", tmp_path, monkeypatch)
    for block in (page.upload, page.shown, page.bars):
        with pytest.raises(UserError, match="not fetched"):
            asyncio.run(block.async_move_resource_to_block_cache("https://example.org/x.png"))
    path = tmp_path / "x.png"
    path.write_bytes(png())
    assert asyncio.run(page.upload.async_move_resource_to_block_cache(str(path))) == str(path)


def test_a_model_without_em_has_a_page_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = make_page("fcn", tmp_path, monkeypatch)
    parts = {c["props"].get("elem_id"): c["props"] for c in page.blocks.config["components"]}
    assert parts["em-part"]["visible"] is False
    assert "has no EM unit" in parts["no-unit"]["value"]
    look = page._see(lambda: page.answers.sample("me", 0))
    assert "data:image/" in look[page.picture]
    assert look[page.maps] == look[page.chart] == ""
