"""The command `node-fit app`: serves a page on this machine to fit a table, watch the fit, and play with the model."""

if __name__ == "__main__":
    from ..startup import start_command

    start_command()  # before anything heavy is imported

import argparse
import contextlib
import os
import socket
import sys
import webbrowser
from pathlib import Path

from ..runtime.serialization import __version__
from ..storage.files import explain_disk, lock

# Packages of the `app` extra.
APP_PACKAGES = ("starlette", "uvicorn")
# Lock file held while serving a folder.
LOCK = ".node_fit_app.lock"


def main(arguments: list[str] | None = None) -> None:
    """Parses the command line, prints the address, and serves the page until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="node-fit app",
        description="Open a page on this machine: drop a table, fit it, and play with the model. Nothing leaves the "
        "machine. Tables and runs are kept in FOLDER, where the other commands find them.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(), help="a folder to work in; this one if absent")
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1; any free one if absent")
    parser.add_argument("--browser", action=argparse.BooleanOptionalAction, default=True, help="open it in a browser")
    options = parser.parse_args(arguments)
    if missing := [name for name in APP_PACKAGES if not is_installed(name)]:
        sys.exit(f"error: node-fit app needs {' and '.join(missing)}: pip install 'node_fit[app]'.")
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        os.chdir(options.folder)
        with lock(Path(LOCK)):
            serve(options.port, show=options.browser)
    except BlockingIOError:
        sys.exit(f"error: a node-fit app serves {Path.cwd()} already; use its page, or name another folder.")
    except OSError as error:
        sys.exit(f"error: {explain_disk(error, options.folder, 'FOLDER')}")


def is_installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def serve(port: int, *, show: bool) -> None:
    """Serves the page on this machine only, and returns after Ctrl-C.

    **Arguments:** `port`: 0 for any free one. `show`: whether to open the page in a browser.
    """
    import uvicorn

    from .guard import LOOPBACK, make_token
    from .server import make_app

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        port, token = listener.getsockname()[1], make_token()
        address = f"http://{LOOPBACK}:{port}/{token}/"
        print(f"node-fit app: {address}\nFor this machine alone; Ctrl-C ends it, and stops a fit with its state saved.")
        sys.stdout.flush()
        config = uvicorn.Config(
            make_app(token, port),
            log_level="error",
            access_log=False,
            server_header=False,
            limit_concurrency=64,
            timeout_graceful_shutdown=2,
        )
        if show and not webbrowser.open(address):
            print("no browser was found; open the address by hand.", file=sys.stderr)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
