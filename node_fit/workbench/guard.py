"""Restricts requests to the server: only this page, with its token, from this machine, and of limited size."""

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The only address that the server listens on.
LOOPBACK = "127.0.0.1"
# Maximum size of a request other than an upload [bytes].
MAX_REQUEST_BYTES = 100_000
# The page can't load anything from other sites. Plotly writes inline styles.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A report can be untrusted: it has a separate origin and no access to the server.
REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # The address contains the token.
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
    "content-security-policy": PAGE_POLICY,
}


class TooLarge(Exception):
    """Raised while reading a request that is too long."""


def make_token() -> str:
    """Returns an unguessable random token of 32 characters."""
    return secrets.token_urlsafe(24)


def report_key(token: str, run: str) -> str:
    """Returns the key to the report of one run. A report can read its own address, which must not reveal the token."""
    return hmac.new(token.encode(), f"report {run}".encode(), hashlib.sha256).hexdigest()[:32]


class Guard:
    """Rejects requests that are too long, lack the token, or come from other hosts, origins and sites.

    The token is the first part of a path, `/TOKEN/...`. Pages of other sites can't read it; a name that an attacker
    points to this machine (DNS rebinding) is another host.

    **Arguments:**

    - `app`: the application for accepted requests.
    - `token`: the server's token.
    - `port`: the port it listens on.
    - `upload`: the end of the path that accepts longer bodies, and their maximum size [bytes].
    """

    def __init__(self, app: "ASGIApp", token: str, port: int, upload: tuple[str, int]):
        self.app, self.token, self.upload = app, token, upload
        self.hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":  # No web sockets.
            return await refuse(send, 400, "only HTTP is served.")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if refused := self.refusal(scope["path"], headers):
            return await refuse(send, *refused)
        most, begun, exceeded = self.most_of(scope["path"]), False, False
        if (length := headers.get("content-length")) is not None and not (length.isdigit() and int(length) <= most):
            return await refuse(send, 413, too_large(most))
        count = 0

        async def receive_counting() -> "Message":
            nonlocal count, exceeded
            message = await receive()
            count += len(message.get("body", b""))
            if count > most:
                exceeded = True
                raise TooLarge
            return message

        async def with_headers(message: "Message") -> None:
            nonlocal begun
            if exceeded and not begun:  # Drop the application's error response in favour of ours.
                return
            begun = True
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                added = [
                    (name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in present
                ]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            await self.app(scope, receive_counting, with_headers)
        except TooLarge:
            if not begun:
                await refuse(send, 413, too_large(most))

    def most_of(self, path: str) -> int:
        end, most = self.upload
        return most if path == f"/{self.token}{end}" else MAX_REQUEST_BYTES

    def refusal(self, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        """Returns the status and message of a rejection; None for a request of the page."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self.hosts:
            return 421, "this server answers only to its own address on this machine."
        if origin is not None and origin != f"http://{host}":
            return 403, "requests of other pages are refused."
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "requests of other pages are refused."
        first = path.split("/")[1] if path.startswith("/") else ""
        if path.startswith("/report/"):  # Reports have their own keys.
            return None
        if not hmac.compare_digest(first.encode(), self.token.encode()):
            return (
                403,
                "the address lacks the token, or has an old one; open the address that node-fit app has printed.",
            )
        return None


def too_large(most: int) -> str:
    return f"the request is longer than {most / 1e6:g} MB."


async def refuse(send: "Send", status: int, sentence: str) -> None:
    """Sends a status and a message."""
    headers = {**HEADERS, "content-type": "text/plain; charset=utf-8", "connection": "close"}
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    await send(start)
    await send({"type": "http.response.body", "body": f"{sentence}\n".encode()})
