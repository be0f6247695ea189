"""The routes of the page, which call the functions of the commands and send content of run directories."""

import functools
import io
import json
import subprocess
import sys
import threading
import zipfile
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..export.export import TARGETS
from ..report.page import TEMPLATES
from ..report.pages import PAGE_NAME
from ..runtime.serialization import Json, __version__, is_json
from ..storage.files import explain_disk
from .choices import words_of_options, words_of_reading
from .guard import REPORT_POLICY, Guard, report_key
from .play import Player, confidence_of_run
from .runs import (
    FILES,
    Busy,
    Fits,
    NoRun,
    command_of_words,
    describe_briefly,
    find_run,
    id_of_run,
    list_runs,
    pictures_of,
    state_of_run,
)
from .uploads import MAX_UPLOAD_BYTES, NotKept, Uploads, look_at, words_of_roles

TABLES_FOLDER = Path("tables")
UPLOAD_PATH = "/api/tables"
STATIC = Path(__file__).parent / "static"
# The page's own files, and those shared with reports.
ASSETS = {
    "app.js": (STATIC / "app.js", "text/javascript"),
    "app.css": (STATIC / "app.css", "text/css"),
    "style.css": (TEMPLATES / "style.css", "text/css"),
    "charts.js": (TEMPLATES / "charts.js", "text/javascript"),
}
# Maximum time for an export [s], and maximum number of loaded players.
MAX_EXPORT_SECONDS, MAX_PLAYERS = 300, 2
# Folder of exported models in a run's directory.
EXPORTS = "exports"


class Workbench:
    """The shared state of the routes: tables, the current fit, and loaded models.

    **Arguments:** `token`: the server's token, from which the addresses of reports are derived.
    """

    def __init__(self, token: str):
        self.token = token
        self.uploads, self.fits = Uploads(TABLES_FOLDER), Fits()
        self.players: OrderedDict[tuple[str, int], Player] = OrderedDict()
        # Load each model and make each export only once, even if several windows request it.
        self.loading, self.exporting = threading.Lock(), threading.Lock()

    def player(self, key: str) -> Player:
        """Returns the model of a run, cached until other models replace it or the fit continues."""
        folder = find_run(key)
        model = folder / FILES["model"]
        version = (key, model.stat().st_mtime_ns if model.is_file() else 0)
        with self.loading:
            if version not in self.players:
                self.players[version] = Player.of(folder)
            self.players.move_to_end(version)
            while len(self.players) > MAX_PLAYERS:
                self.players.popitem(last=False)
            return self.players[version]

    def state(self, _: Request) -> Json:
        running = self.fits.running()
        return {
            "version": __version__,
            "folder": str(Path.cwd()),
            "tables": self.uploads.list()[:20],
            "runs": [describe_briefly(path, self.fits) for path in list_runs()],
            "running": None if running is None else id_of_run(running),
            "targets": list(TARGETS),
            "most_upload": MAX_UPLOAD_BYTES,
        }

    async def upload(self, request: Request) -> Response:
        content = await request.body()
        name = request.query_params.get("name", "table.csv")
        try:
            return JSONResponse({"id": await run_in_threadpool(self.uploads.keep, name, content)})
        except (NotKept, OSError) as error:
            return say(400, explain_disk(error, TABLES_FOLDER) if isinstance(error, OSError) else error)

    def stop(self, request: Request) -> Json:
        self.fits.stop(find_run(request.path_params["run"]))
        return {}

    def resume(self, request: Request) -> Json:
        self.fits.resume(find_run(request.path_params["run"]))
        return {}

    def describe_player(self, request: Request) -> Json:
        key = request.path_params["run"]
        return self.player(key).describe(confidence_of_run(find_run(key)))

    def simulate(self, key: str, asked: Json) -> Json:
        return self.player(key).simulate(asked)

    def look(self, key: str, asked: Json) -> Json:
        roles, options = mapping_or_none(asked, "roles"), mapping_or_none(asked, "options") or {}
        path = self.uploads.find(key)
        return {"id": key, **look_at(path, roles, words_of_reading(options))}

    def words(self, asked: Json) -> list[str]:
        """Returns the words of the command composed on the page."""
        path = self.uploads.find(str(asked.get("table")))
        options = words_of_options(mapping_or_none(asked, "options") or {})
        return [str(path), *words_of_roles(mapping_or_none(asked, "roles")), *options]

    def command(self, asked: Json) -> Json:
        return {"command": command_of_words(self.words(asked))}

    def begin(self, asked: Json) -> Json:
        return {"id": id_of_run(self.fits.begin(self.words(asked)))}

    def run(self, request: Request) -> Json:
        key = request.path_params["run"]
        since = request.query_params.get("since", "0")
        state = state_of_run(find_run(key), self.fits, int(since) if since.isdigit() and len(since) < 12 else 0)
        return state | {"report": f"/report/{key}/{report_key(self.token, key)}" if state["has_report"] else None}

    def export(self, key: str, target: str) -> Json:
        """Exports the model for a target with the export command, unless the files are up to date."""
        folder, out = self.export_folder(key, target)
        if not (folder / FILES["model"]).is_file():
            raise ValueError("this run has no model yet.")
        words = ["-m", "node_fit.export", str(folder), "--to", target, "--out", str(out)]
        with self.exporting:
            readme = out / "README.md"
            if readme.is_file() and readme.stat().st_mtime >= (folder / FILES["model"]).stat().st_mtime:
                output = ""
            else:
                process = subprocess.run(
                    [sys.executable, *words, "--overwrite"],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=MAX_EXPORT_SECONDS,
                    check=False,
                )
                if process.returncode != 0:
                    raise ValueError((process.stderr.strip().splitlines() or ["the export has failed"])[-1])
                output = process.stdout.strip()
        return {"said": output, "command": f"python {' '.join(words)}", "file": f"api/runs/{key}/exports/{target}"}

    def export_folder(self, key: str, target: str) -> tuple[Path, Path]:
        if target not in TARGETS:
            raise NoRun("there is no such target.")
        folder = find_run(key)
        return folder, folder / EXPORTS / target

    def export_file(self, request: Request) -> Response:
        """Sends an export as one zip file."""
        key, target = request.path_params["run"], request.path_params["target"]
        _, out = self.export_folder(key, target)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
            for path in sorted(out.rglob("*")):
                if path.is_file() and not path.is_symlink():
                    file.write(path, Path(f"model_{target}") / path.relative_to(out))
        if not file.namelist():
            raise NoRun("this export is not made yet.")
        name = f'attachment; filename="model_{target}.zip"'
        return Response(packed.getvalue(), media_type="application/zip", headers={"content-disposition": name})

    def file(self, request: Request) -> Response:
        folder, word = find_run(request.path_params["run"]), request.path_params["name"]
        path = folder / FILES.get(word, "")
        if word not in FILES or path.is_symlink() or not path.is_file():
            raise NoRun("the run has no such file.")
        return FileResponse(path, filename=path.name, media_type="application/octet-stream")

    def picture(self, request: Request) -> Response:
        path = pictures_of(find_run(request.path_params["run"])).get(request.path_params["name"])
        if path is None:
            raise NoRun("the run has no such picture.")
        return Response(path.read_bytes(), media_type="image/png")

    def report(self, request: Request) -> Response:
        """Sends the report page of a run, with a separate origin."""
        key = request.path_params["run"]
        folder = find_run(key)
        if request.path_params["key"] != report_key(self.token, key) or not (folder / PAGE_NAME).is_file():
            raise NoRun("there is no such report.")
        return HTMLResponse((folder / PAGE_NAME).read_bytes(), headers={"content-security-policy": REPORT_POLICY})


def mapping_or_none(asked: Json, key: str) -> Json | None:
    """Returns an object in a request, or None.

    **Raises:** `ValueError` if it is anything else.
    """
    value = asked.get(key)
    if value is not None and not is_json(value):
        raise ValueError(f"{key} must be an object.")
    return value


async def read_asked(request: Request) -> Json:
    """Reads the JSON object of a request.

    **Raises:** `ValueError` if there is none.
    """
    try:
        content = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError):
        raise ValueError("the request is not JSON.") from None
    if not is_json(content):
        raise ValueError("the request is not an object.")
    return content


def answer_with(
    call: Callable[..., object], *, reads: bool = False, keys: tuple[str, ...] = ()
) -> Callable[..., object]:
    """Makes a route that calls a function in a thread, and converts its errors to a status and a message.

    **Arguments:** `reads`: whether the function takes the request's JSON object. `keys`: the path parameters that it
    takes. With neither, it takes the request.
    """

    @functools.wraps(call)
    async def route(request: Request) -> Response:
        try:
            arguments: list[object] = [request.path_params[key] for key in keys]
            if reads:
                arguments.append(await read_asked(request))
            answer = await run_in_threadpool(call, *(arguments or [request]))
        except NoRun as error:
            return say(404, error)
        except NotKept as error:
            return say(404, error)
        except Busy as error:
            return say(409, error)
        except OSError as error:
            return say(400, explain_disk(error, ".") if error.errno is not None else error)
        except (ValueError, MemoryError) as error:
            return say(400, error)
        except subprocess.TimeoutExpired:
            return say(400, f"the export took more than {MAX_EXPORT_SECONDS} s; use the command for it.")
        return answer if isinstance(answer, Response) else JSONResponse(answer)

    return route


def say(status: int, error: Exception | str) -> Response:
    return JSONResponse({"error": str(error) or type(error).__name__}, status)


async def send_page(_: Request) -> Response:
    return HTMLResponse((STATIC / "app.html").read_text(encoding="utf-8"))


async def send_asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name == "plotly.js":
        return Response(plotly_script(), media_type="text/javascript", headers={"cache-control": "max-age=86400"})
    if name not in ASSETS:
        return PlainTextResponse("there is no such file.", 404)
    path, kind = ASSETS[name]
    return Response(path.read_bytes(), media_type=kind)


def make_app(token: str, port: int) -> Guard:
    """Builds the server's application: the routes, behind the guard.

    **Arguments:** `token`: the first part of every address. `port`: the port it listens on.
    """
    bench = Workbench(token)

    top, run = f"/{token}", f"/{token}/api/runs/{{run}}"
    routes = [
        Route(f"{top}/", send_page),
        Route(f"{top}/static/{{name}}", send_asset),
        Route(f"{top}/api/state", answer_with(bench.state)),
        Route(f"{top}{UPLOAD_PATH}", bench.upload, methods=["POST"]),
        Route(
            f"{top}/api/tables/{{table}}/look", answer_with(bench.look, reads=True, keys=("table",)), methods=["POST"]
        ),
        Route(f"{top}/api/command", answer_with(bench.command, reads=True), methods=["POST"]),
        Route(f"{top}/api/runs", answer_with(bench.begin, reads=True), methods=["POST"]),
        Route(run, answer_with(bench.run)),
        Route(f"{run}/stop", answer_with(bench.stop), methods=["POST"]),
        Route(f"{run}/resume", answer_with(bench.resume), methods=["POST"]),
        Route(f"{run}/pictures/{{name}}", answer_with(bench.picture)),
        Route(f"{run}/files/{{name}}", answer_with(bench.file)),
        Route(f"{run}/exports/{{target}}", answer_with(bench.export, keys=("run", "target")), methods=["POST"]),
        Route(f"{run}/exports/{{target}}", answer_with(bench.export_file)),
        Route(f"{run}/play", answer_with(bench.describe_player)),
        Route(f"{run}/play", answer_with(bench.simulate, reads=True, keys=("run",)), methods=["POST"]),
        Route("/report/{run}/{key}", answer_with(bench.report)),
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        await run_in_threadpool(bench.fits.close)

    return Guard(Starlette(routes=routes, lifespan=lifespan), token, port, (UPLOAD_PATH, MAX_UPLOAD_BYTES))


@functools.cache
def plotly_script() -> bytes:
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
