"""The server around the page: what may be asked for, by whom, and how much may be sent.

Gradio can do much that the explorer does not need: fetch other addresses, record, edit its own
program. Everything but what the page itself uses is answered with 404.
"""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from hemnet.app.limits import Limits, make_room
from hemnet.errors import UserError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]

API = "/gradio_api"
FILE = f"{API}/file="
PLACES = re.compile(
    rf"/|/config/?|/theme\.css|/favicon\.ico|/robots\.txt|/manifest\.json"
    rf"|/(?:assets|static|svelte)/[\w./@-]+"
    rf"|{API}/(?:info/?|app_id/?|theme\.css|startup-events|upload_progress|heartbeat/\w+)"
    rf"|{API}/(?:queue/join|queue/data|cancel|reset/?|upload)"
    rf"|{API}/file=.+"
)
SMALL = 200_000  # bytes of a request that uploads nothing
ENVELOPE = 20_000  # bytes around the file in an upload
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'; "
        b"form-action 'self'; object-src 'none'; base-uri 'self'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class Guard:
    """Lets through what the page needs."""

    def __init__(self, app: Asgi, folder: Path, limits: Limits, loopback: bool) -> None:
        self.app, self.folder, self.limits, self.loopback = app, folder.resolve(), limits, loopback

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is not None:
                await _refuse(send, *refusal)
            else:
                await self._pass(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, scope: Message) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        # A page elsewhere whose name is made to mean this computer could read all of it.
        if self.loopback and not is_loopback(_host_name(host)):
            return 403, "this explorer answers only to the computer it runs on"
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "only GET, HEAD and POST"
        path = scope["path"]
        if not PLACES.fullmatch(path):
            return 404, "there is nothing here"
        if path.startswith(f"{API}/file=") and not self._own_file(
            path.removeprefix(f"{API}/file=")
        ):
            return 403, "this file is not the explorer's"
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            return 400, "content-length is no number"
        if int(length) > self._most(path):
            return 413, "too large"
        return None

    def _own_file(self, name: str) -> bool:
        """Inside the explorer's own folder, links followed, whatever the name is written like."""
        try:
            place = Path(unquote(name))
            return place.is_absolute() and place.resolve().is_relative_to(self.folder)
        except (OSError, ValueError, RuntimeError):
            return False

    def _most(self, path: str) -> int:
        return self.limits.bytes + ENVELOPE if path == f"{API}/upload" else SMALL

    async def _pass(self, scope: Message, receive: Receive, send: Send) -> None:
        most, got, begun = self._most(scope["path"]), 0, False
        if scope["path"] == f"{API}/upload":
            make_room(self.folder, self.limits.folder)

        async def counted() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            if got > most:  # it came in pieces, without saying how many
                raise _TooLargeError
            return message

        async def with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                if got > most:  # whatever the application made of it
                    message["status"] = 413
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        try:
            await self.app(scope, counted, with_headers)
        except _TooLargeError:
            if not begun:
                await _refuse(send, 413, "too large")


class _TooLargeError(Exception):
    pass


async def _refuse(send: Send, code: int, text: str) -> None:
    body = text.encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(host: str) -> str:
    """Of a Host header, without its port."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def prepare(folder: Path) -> None:
    """Gradio keeps files here and speaks to no one. Before gradio is imported."""
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    os.environ["GRADIO_EXAMPLES_CACHE"] = str(folder / "examples")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"


def make_app(blocks: Any, folder: Path, limits: Limits, loopback: bool = True) -> Asgi:
    """The page as an ASGI application, guarded."""
    import gradio as gr
    from fastapi import FastAPI

    theme = gr.themes.Default(
        primary_hue="blue",
        neutral_hue="slate",
        font=("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"),
        font_mono=("ui-monospace", "Menlo", "Consolas", "monospace"),
    )
    app = gr.mount_gradio_app(
        FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        blocks,
        path="/",
        footer_links=[],
        run_history=False,
        show_error=False,
        max_file_size=limits.bytes,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        enable_monitoring=False,
        theme=theme,
        css=(files("hemnet.app") / "style.css").read_text(),
    )
    return Guard(app, folder, limits, loopback)


def listen(host: str, port: int | None, default: int = 7860) -> socket.socket:
    """A socket; without a port the first free one from `default` on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reason: OSError | None = None
    for number in [port] if port is not None else [*range(default, default + 20), 0]:
        place = socket.socket(family)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            place.bind((host, number))
            place.listen(128)  # from here on the port is ours
            return place
        except (OSError, OverflowError) as error:
            place.close()
            reason = error if isinstance(error, OSError) else OSError(str(error))
    text = reason and (reason.strerror or reason)
    raise UserError(f"cannot listen on {host}, port {port or default}: {text}.")


def serve(app: Asgi, place: socket.socket, open_browser: bool = False) -> None:
    """Until Ctrl-C."""
    import uvicorn

    host, port = place.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            print(f"HEMNet explorer: {address}  (Ctrl-C ends it)", flush=True)
            if not is_loopback(host):
                print("Other computers can reach it, and it asks no one for a password.")
            if open_browser:
                threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()

    # Both ways of ending it leave by this function, so that the temporary folder goes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, ws="none")
    with suppress(KeyboardInterrupt):
        Server(config).run([place])
