"""Who may ask the server, and for how much: this page alone, by its token, from this machine."""

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The only address that the server listens on.
LOOPBACK = "127.0.0.1"
# What a request may carry, but for an upload [bytes].
MAX_REQUEST_BYTES = 100_000
# What a page of ours may load: nothing from elsewhere. Plotly writes styles.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A report may come from elsewhere: it has an origin of its own, and reaches nothing.
REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # The address holds the token.
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
    "content-security-policy": PAGE_POLICY,
}


class TooLarge(Exception):
    """Raised while a request is read that is longer than it may be."""


def make_token() -> str:
    """A random word that nobody guesses, of 32 letters."""
    return secrets.token_urlsafe(24)


def report_key(token: str, run: str) -> str:
    """The word that opens the report of one run; a report sees its own address, which must not tell the token."""
    return hmac.new(token.encode(), f"report {run}".encode(), hashlib.sha256).hexdigest()[:32]


class Guard:
    """Refuses requests that are not of the page: of other hosts, origins and sites, without the token, or too long.

    The token is the first part of a path, `/TOKEN/...`. A page of another site can't read it; a name that an attacker
    points to this machine (DNS rebinding) is another host.

    **Arguments:**

    - `app`: what answers the others.
    - `token`: of this server.
    - `port`: on which it listens.
    - `upload`: the end of the path to which a longer body may be sent, and how long [bytes].
    """

    def __init__(self, app: "ASGIApp", token: str, port: int, upload: tuple[str, int]):
        self.app, self.token, self.upload = app, token, upload
        self.hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":  # There are no web sockets.
            return await refuse(send, 400, "only HTTP is served.")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if refused := self.refusal(scope["path"], headers):
            return await refuse(send, *refused)
        most, begun, exceeded = self.most_of(scope["path"]), False, False
        if (length := headers.get("content-length")) is not None and not (length.isdigit() and int(length) <= most):
            return await refuse(send, 413, too_large(most))
        count = 0

        async def counted() -> "Message":
            nonlocal count, exceeded
            message = await receive()
            count += len(message.get("body", b""))
            if count > most:
                exceeded = True
                raise TooLarge
            return message

        async def with_headers(message: "Message") -> None:
            nonlocal begun
            if exceeded and not begun:  # Of the program's own words on an error, in place of ours.
                return
            begun = True
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in own]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            await self.app(scope, counted, with_headers)
        except TooLarge:
            if not begun:
                await refuse(send, 413, too_large(most))

    def most_of(self, path: str) -> int:
        end, most = self.upload
        return most if path == f"/{self.token}{end}" else MAX_REQUEST_BYTES

    def refusal(self, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        """The status and the sentence of a refusal; None for a request of the page."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self.hosts:
            return 421, "this server answers only to its own address on this machine."
        if origin is not None and origin != f"http://{host}":
            return 403, "requests of other pages are refused."
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "requests of other pages are refused."
        first = path.split("/")[1] if path.startswith("/") else ""
        if path.startswith("/report/"):  # It has a key of its own.
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
    """Answers with a status and a sentence."""
    headers = {**HEADERS, "content-type": "text/plain; charset=utf-8", "connection": "close"}
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    await send(start)
    await send({"type": "http.response.body", "body": f"{sentence}\n".encode()})
