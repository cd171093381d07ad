"""Accept only requests that are addressed to this server and come from its own page."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]

HOST = re.compile(r"([a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?", re.IGNORECASE)
SINGLE = (b"host", b"origin", b"sec-fetch-site", b"content-type", b"content-length")


class Guard:
    """Middleware that rejects what the explorer's own page would not send, before it is read."""

    def __init__(self, app: Asgi, loopback: bool) -> None:
        self.app, self.loopback = app, loopback
        # Hugging Face shows a Space inside a page of its own, and names the Space's address here.
        space = os.environ.get("SPACE_HOST", "").lower()
        self.names = {space} if space else set()
        parents = "'self' https://huggingface.co" if space else "'self'"
        self.headers = [
            (name.encode(), value.encode())
            for name, value in {
                # Styles stand in the HTML that drawing.py writes; scripts never do.
                "content-security-policy": "default-src 'none'; script-src 'self'; "
                "style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
                f"base-uri 'none'; form-action 'none'; frame-ancestors {parents}",
                "cross-origin-resource-policy": "same-origin",
                "x-content-type-options": "nosniff",
                "referrer-policy": "no-referrer",
                "cache-control": "no-store",
            }.items()
        ]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self.headers]
            await send(message)

        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is None:
                await self.app(scope, receive, with_headers)
            else:
                await _refuse(with_headers, *refusal)

    def _refusal(self, scope: Message) -> tuple[int, str] | None:
        headers: dict[bytes, str] = {}
        for name, value in scope["headers"]:
            if name in SINGLE and name in headers:
                return 400, f"the header {name.decode()} appears twice"
            headers[name] = value.decode("latin-1")
        host = headers.get(b"host", "").lower()
        name = host_name(host)
        if name is None:
            return 400, "host: expected one name or address, with or without a port"
        # A foreign name that resolves to this computer would let that site's pages read ours.
        if self.loopback and not is_loopback(name):
            return 403, "host: this explorer answers only to localhost and its addresses"
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "method: expected GET, HEAD or POST"
        if not scope["path"].isprintable():  # "/view\n" would match the route of "/view"
            return 404, "Not Found"
        # A link from elsewhere may open the page, and nothing but the page.
        if (scope["method"] == "POST" or scope["path"] != "/") and self._foreign(headers, host):
            return 403, "this request comes from another site: open the explorer's own page"
        return None

    def _foreign(self, headers: dict[bytes, str], host: str) -> bool:
        """Whether a browser says that another site sent the request; other programs do not say."""
        if headers.get(b"sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return True
        origin = headers.get(b"origin")
        if origin is None:
            return False
        try:
            parts = urlsplit(origin.lower())
        except ValueError:
            return True
        return parts.scheme not in ("http", "https") or parts.netloc not in {host, *self.names}


def host_name(host: str) -> str | None:
    """The name or address in a Host header, without the port; None where it is malformed."""
    found = HOST.fullmatch(host)
    if found is None:
        return None
    name = found[1]
    if not name.startswith("["):
        return name
    try:
        return str(ipaddress.IPv6Address(name[1:-1]))
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _refuse(send: Send, code: int, text: str) -> None:
    body = json.dumps({"error": text}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
