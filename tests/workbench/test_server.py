"""The server of the page: who is answered, what becomes of tables and fits, and twenty attacks."""

import gzip
import io
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import pytest

pytest.importorskip("starlette")
from helpers.reports import by_trajectory, spirals, write_run
from starlette.testclient import TestClient

from node_fit.storage.checkpoint import SUFFIX
from node_fit.workbench import runs, uploads
from node_fit.workbench.choices import words_of_options
from node_fit.workbench.guard import MAX_REQUEST_BYTES, make_token, report_key
from node_fit.workbench.runs import Busy, Fits, NoRun, describe_status, find_run
from node_fit.workbench.server import make_app

TOKEN, PORT = make_token(), 8123
HOME = f"http://127.0.0.1:{PORT}"
TOP = f"/{TOKEN}"
DECIMAL_COMMAS = "Zeit;x;id\n" + "".join(
    f"{i * 0.1:.1f};{(1 - 0.05 * i):.3f};{name}\n".replace(".", ",") for name in "AB" for i in range(12)
)
RUN = "2026-11-21_08-30-00-123456"


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with TestClient(make_app(TOKEN, PORT), base_url=HOME) as made:
        yield made


def drop(client, content=DECIMAL_COMMAS, name="messwerte.csv"):
    return client.post(f"{TOP}/api/tables", params={"name": name}, content=content)


def look(client, key, **asked):
    return client.post(f"{TOP}/api/tables/{key}/look", json=asked)


def write_finished_run():
    return write_run(runs.OUTPUTS / "2026-11-21" / "08-30-00-123456", by_trajectory(spirals()))


@pytest.fixture
def sleeping(monkeypatch):
    """Fits whose processes do nothing for long."""

    def spawn(words, printed):
        code = "import sys, time; print('up', file=sys.stderr, flush=True); time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=printed, stderr=subprocess.PIPE)
        with process.stderr:  # A signal before that ends an import, and another way.
            assert process.stderr.readline() == b"up\n"
        return process

    monkeypatch.setattr(runs, "spawn_fit", spawn)


def test_the_page_loads_nothing_from_elsewhere(client):
    page = client.get(f"{TOP}/")
    assert page.status_code == 200 and "http" not in page.text.replace("http-equiv", "")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for name in ("app.js", "app.css", "style.css", "charts.js", "plotly.js"):
        assert client.get(f"{TOP}/static/{name}").status_code == 200


def test_a_table_with_decimal_commas_is_seen_with_guessed_roles(client):
    key = drop(client).json()["id"]
    assert drop(client).json()["id"] == key, "the same table is kept once"
    seen = look(client, key).json()
    assert seen["roles"]["time"] == "Zeit" and seen["roles"]["states"] == ["x"] and seen["roles"]["trajectory"] == "id"
    assert seen["error"] is None and seen["data"]["rows"] == 24 and seen["data"]["records"][0]["ts"][1] == 0.1
    assert [column["kind"] for column in seen["columns"]] == ["numbers", "numbers", "text"]


def test_a_column_that_leaps_between_levels_is_shown_as_an_input(client):
    loads = [load for load in (2, 0, 1, 5, 0, 5, 1, 0, 2, 5) for _ in range(6)]
    rows = [f"{row},{load},{row % 7}" for row, load in enumerate(loads)]
    key = drop(client, "\n".join(["t,load,volts", *rows]), "cell.csv").json()["id"]
    seen = look(client, key).json()
    assert (seen["roles"]["states"], seen["roles"]["inputs"], seen["likely_inputs"]) == (["volts"], ["load"], {})
    assert "'load' is an input" in seen["said"] and seen["data"]["inputs"] == ["load"]


def test_columns_that_repeat_an_experiment_are_trajectories_on_the_page(client):
    rows = "".join(f"{hour},{hour / 10},{hour / 9},{hour / 8}\n" for hour in range(9))
    key = drop(client, f"h,Replicate 1,Replicate 2,x\n{rows}", "plate.csv").json()["id"]
    seen = look(client, key).json()
    assert seen["roles"]["series"] == ["Replicate 1", "Replicate 2"] and seen["roles"]["states"] == []
    roles = seen["roles"] | {"series": ["Replicate 1", "x"]}
    seen = look(client, key, roles=roles).json()
    assert seen["error"] is None and seen["data"]["states"] == ["value"]
    assert [record["name"] for record in seen["data"]["records"]] == ["Replicate 1", "x"]
    asked = {"table": key, "roles": roles, "options": {}}
    command = client.post(f"{TOP}/api/command", json=asked).json()["command"]
    assert """'data.series=["Replicate 1",x]'""" in command and "data.states" not in command


def test_roles_of_the_page_are_those_of_the_command(client):
    key = drop(client, "t,x,u\n" + "".join(f"{i},{i * i},{i % 3}\n" for i in range(9)), "driven.csv").json()["id"]
    roles = {"time": "t", "states": ["x"], "inputs": ["u"]}
    seen = look(client, key, roles=roles).json()
    assert seen["data"]["inputs"] == ["u"] and seen["error"] is None
    asked = {"table": key, "roles": roles, "options": {"effort": "quick", "training.steps": 5}}
    command = client.post(f"{TOP}/api/command", json=asked).json()["command"]
    assert f"tables/{key}/driven.csv" in command and "'data.inputs=[u]'" in command and "effort=quick" in command


def test_a_role_that_does_not_fit_is_a_sentence(client):
    key = drop(client).json()["id"]
    assert "no column 'y'" in look(client, key, roles={"time": "Zeit", "states": ["y"]}).json()["error"]


def test_options_become_words_and_nothing_else_does():
    given = {"field": "known", "equations": "dx/dt = -k*x", "constants": "k = 1.5, 0, 10", "hidden": 1}
    assert words_of_options(given) == [
        "hidden=1",
        "field=known",
        '+field.equations={x:"-k*x"}',
        "+field.constants={k:[1.5,0.0,10.0]}",
    ]
    for wrong in (
        {"extensions": ["os"]},
        {"hydra.run.dir": "/tmp"},
        {"seed": True},
        {"effort": "x"},
        {"data.path": "/etc"},
    ):
        with pytest.raises(ValueError, match=r"option|must be"):
            words_of_options(wrong)
    (_, equations) = words_of_options({"field": "known", "equations": "x: y"})
    assert "${" not in equations
    with pytest.raises(ValueError, match="constants, line 2"):
        words_of_options({"field": "known", "equations": "x: -k*x", "constants": "k = 1\nfast"})


def gzip_bomb():
    return gzip.compress(b"t,x\n" + b"0" * 300_000_000, 9)


def xlsx_bomb():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("[Content_Types].xml", "<Types/>")
        file.writestr("xl/worksheets/sheet1.xml", b"0" * 400_000_000)
    return packed.getvalue()


# Each with what is asked, its headers, and the statuses that it may have.
ATTACKS = {
    "no token": ("GET", "/", {}, {403}),
    "a wrong token": ("GET", f"/{'x' * 32}/", {}, {403}),
    "part of the token": ("GET", f"/{TOKEN[:-1]}/", {}, {403}),
    "the token elsewhere": ("GET", f"/api/state?token={TOKEN}", {}, {403}),
    "another host (DNS rebinding)": ("GET", f"{TOP}/api/state", {"host": f"evil.example:{PORT}"}, {421}),
    "another port": ("GET", f"{TOP}/api/state", {"host": "127.0.0.1:1"}, {421}),
    "no host": ("GET", f"{TOP}/api/state", {"host": ""}, {421}),
    "another origin": ("POST", f"{TOP}/api/runs", {"origin": "http://evil.example"}, {403}),
    "an origin of none": ("POST", f"{TOP}/api/runs", {"origin": "null"}, {403}),
    "another server of this machine": ("POST", f"{TOP}/api/runs", {"origin": "http://127.0.0.1:9"}, {403}),
    "a picture in another page": ("GET", f"{TOP}/api/state", {"sec-fetch-site": "cross-site"}, {403}),
    "a page of the same site": ("GET", f"{TOP}/api/state", {"sec-fetch-site": "same-site"}, {403}),
    "a path in a run's id": ("GET", f"{TOP}/api/runs/..%2f..%2fetc", {}, {404}),
    "points in a run's id": ("GET", f"{TOP}/api/runs/2026-11-21_..", {}, {404}),
    "a path in a file's name": ("GET", f"{TOP}/api/runs/{RUN}/files/..%2f..%2f..%2fsecret", {}, {404}),
    "a file that is not offered": ("GET", f"{TOP}/api/runs/{RUN}/files/.run.json", {}, {404}),
    "a path in a picture's name": ("GET", f"{TOP}/api/runs/{RUN}/pictures/..%2fsummary.json", {}, {404}),
    "a path in a static name": ("GET", f"{TOP}/static/..%2f__main__.py", {}, {404}),
    "a path in a target": ("GET", f"{TOP}/api/runs/{RUN}/exports/..%2f..", {}, {404}),
    "a path in a table's id": ("POST", f"{TOP}/api/tables/..%2f..%2fetc/look", {}, {404}),
    "a report without its key": ("GET", f"/report/{RUN}/{'0' * 32}", {}, {404}),
    "a report by the token": ("GET", f"/report/{RUN}/{TOKEN}", {}, {404}),
    "another method": ("DELETE", f"{TOP}/api/runs/{RUN}", {}, {405}),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_refused(name, client, tmp_path):
    write_finished_run()
    (tmp_path / "secret").write_text("secret")
    method, path, headers, statuses = ATTACKS[name]
    answer = client.request(method, path, headers=headers, content=b"{}" if method == "POST" else None)
    assert answer.status_code in statuses, answer.text
    assert "secret" not in answer.text and answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "options", [{"extensions": ["antigravity"]}, {"hydra.run.dir": "/tmp"}, {"hidden": "1 extensions=[os]"}]
)
def test_options_that_run_code_or_name_paths_are_refused(client, options):
    key = drop(client).json()["id"]
    assert client.post(f"{TOP}/api/runs", json={"table": key, "options": options}).status_code == 400
    assert not runs.OUTPUTS.exists()


def test_long_requests_are_refused_before_they_are_kept(client, monkeypatch):
    assert client.post(f"{TOP}/api/runs", content=b"0" * (MAX_REQUEST_BYTES + 1)).status_code == 413
    small = TestClient(make_app(TOKEN, PORT), base_url=HOME)
    small.app.upload = (small.app.upload[0], 1000)
    assert small.post(f"{TOP}/api/tables?name=a.csv", content=b"0" * 1001).status_code == 413
    parts = (b"0" * 400 for _ in range(4))  # without a length
    assert small.post(f"{TOP}/api/tables?name=a.csv", content=parts).status_code == 413
    assert not any(uploads.Path("tables").glob("*/*"))
    monkeypatch.setattr(uploads, "MAX_KEPT_BYTES", 10)
    assert "holds" in drop(client).json()["error"]


@pytest.mark.parametrize(("name", "bomb"), [("bomb.csv.gz", gzip_bomb), ("bomb.xlsx", xlsx_bomb)])
def test_files_that_unpack_to_much_end_in_a_sentence(client, name, bomb):
    key = drop(client, bomb(), name).json()["id"]
    began = time.monotonic()
    answer = look(client, key)
    assert answer.status_code == 400 and "GB once unpacked" in answer.json()["error"] and time.monotonic() - began < 5


@pytest.mark.parametrize("content", [b"", b"\0\1\2", b"<html>", b"a,b\n", b"{" * 5000])
def test_files_that_are_no_tables_end_in_a_sentence(client, content):
    answer = drop(client, content)
    if answer.status_code == 200:
        answer = look(client, answer.json()["id"])
    assert answer.status_code in (200, 400) and answer.json()["error"]


@pytest.mark.parametrize(
    "name", ["../../x.csv", "/etc/passwd", "..\\x.csv", ".hidden.csv", "", "-rf", "a" * 500 + ".csv", "\u2028é.csv"]
)
def test_names_of_files_stay_in_their_folder(client, tmp_path, name):
    key = drop(client, name=name).json()["id"]
    (kept,) = (tmp_path / "tables" / key).iterdir()
    assert len(kept.name) < 100 and kept.name[0] not in ".-" and not (tmp_path.parent / "x.csv").exists()


def test_requests_that_are_no_objects_are_refused(client):
    for content in (b"[]", b"{", b"[" * 50_000, b"\xff", b'"x"'):
        assert client.post(f"{TOP}/api/runs", content=content).status_code == 400


def test_a_link_in_place_of_a_run_is_none(client, tmp_path):
    run = write_finished_run()
    link = run.with_name("09-00-00-000000")
    link.symlink_to(tmp_path)
    with pytest.raises(NoRun):
        find_run("2026-11-21_09-00-00-000000")


def test_a_report_has_an_origin_of_its_own_and_does_not_know_the_token(client):
    run = write_finished_run()
    (run / "report.html").write_text("<script>1</script>")
    found = client.get(f"{TOP}/api/runs/{RUN}").json()
    assert found["report"] == f"/report/{RUN}/{report_key(TOKEN, RUN)}" and TOKEN not in found["report"]
    answer = client.get(found["report"])
    assert answer.status_code == 200 and answer.headers["content-security-policy"].startswith("sandbox allow-scripts")
    assert "connect-src" not in answer.headers["content-security-policy"], "nothing may be reached"


def test_a_finished_run_is_shown_and_its_files_are_sent(client):
    run = write_finished_run()
    found = client.get(f"{TOP}/api/runs/{RUN}").json()
    assert found["status"] == "completed" and "predictions" in found["files"]
    answer = client.get(f"{TOP}/api/runs/{RUN}/files/predictions")
    assert answer.content == (run / "predictions.csv").read_bytes()
    assert [each["id"] for each in client.get(f"{TOP}/api/state").json()["runs"]] == [RUN]


def test_two_windows_have_one_fit(client, sleeping):
    key = drop(client).json()["id"]
    first = client.post(f"{TOP}/api/runs", json={"table": key})
    assert first.status_code == 200
    run = first.json()["id"]
    second = client.post(f"{TOP}/api/runs", json={"table": key})
    assert second.status_code == 409 and run in second.json()["error"]
    assert client.get(f"{TOP}/api/state").json()["running"] == run
    assert client.post(f"{TOP}/api/runs/{run}/stop", json={}).status_code == 200
    wait(lambda: client.get(f"{TOP}/api/state").json()["running"] is None)
    assert client.post(f"{TOP}/api/runs/{run}/stop", json={}).status_code == 409


def test_a_run_is_resumed_in_its_own_directory_if_no_fit_runs(client, monkeypatch):
    words = []

    def spawn(given, printed):
        words.append(given)
        code = "import time; print('going on', flush=True); time.sleep(60)"
        return subprocess.Popen([sys.executable, "-c", code], stdout=printed)

    monkeypatch.setattr(runs, "spawn_fit", spawn)
    path = write_finished_run()
    (path / runs.PRINTED).write_text("from before\n")
    key = drop(client).json()["id"]
    run = client.post(f"{TOP}/api/runs", json={"table": key}).json()["id"]
    busy = client.post(f"{TOP}/api/runs/{RUN}/resume", json={})
    assert busy.status_code == 409 and run in busy.json()["error"], "the fit of another window runs"
    client.post(f"{TOP}/api/runs/{run}/stop", json={})
    wait(lambda: client.get(f"{TOP}/api/state").json()["running"] is None)

    assert client.post(f"{TOP}/api/runs/{RUN}/resume", json={}).status_code == 200
    assert words[1:] == [[f"resume={path}"]]
    found = client.get(f"{TOP}/api/runs/{RUN}").json()
    assert found["status"] == "running" and not found["can_resume"], "the summary of before does not count"
    wait(lambda: client.get(f"{TOP}/api/runs/{RUN}").json()["printed"] == "from before\ngoing on\n")
    assert client.post(f"{TOP}/api/runs/{RUN}/stop", json={}).status_code == 200
    wait(lambda: client.get(f"{TOP}/api/state").json()["running"] is None)
    assert client.post(f"{TOP}/api/runs/2026-11-21_08-30-01/resume", json={}).status_code == 404


def wait(true, seconds=20.0):
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_killed_fit_is_said_and_another_may_begin(client, sleeping):
    key = drop(client).json()["id"]
    run = client.post(f"{TOP}/api/runs", json={"table": key}).json()["id"]
    os.kill(runs.read_json(find_run(run) / runs.BEGUN_BY)["process"], signal.SIGKILL)
    wait(lambda: client.get(f"{TOP}/api/runs/{run}").json()["status"] == "killed")
    assert "SIGKILL" in client.get(f"{TOP}/api/runs/{run}").json()["sentence"]
    assert client.post(f"{TOP}/api/runs", json={"table": key}).status_code == 200


def test_the_end_of_a_fit_is_noted_where_it_began(tmp_path, sleeping, monkeypatch):
    """A thread that failed would fail this test: warnings are errors."""
    monkeypatch.chdir(tmp_path)
    kept, deleted = Fits(), Fits()
    path = kept.begin([]).absolute()
    kept.process.kill()
    kept.watcher.join()
    shutil.rmtree(deleted.begin([]))
    monkeypatch.chdir(tmp_path.parent)
    deleted.close()
    assert runs.read_json(path / runs.BEGUN_BY)["ended"] == -signal.SIGKILL

    monkeypatch.chdir(tmp_path)
    moved = Fits()
    path = moved.begin([]).absolute()
    monkeypatch.chdir(tmp_path.parent)
    moved.close()
    assert runs.read_json(path / runs.BEGUN_BY)["ended"] == -signal.SIGINT


def test_how_a_fit_was_killed_is_said_before_its_directory_tells(tmp_path, sleeping, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "note_end", lambda *_: None)
    fits = Fits()
    path = fits.begin([])
    fits.process.kill()
    fits.process.wait()
    assert "SIGKILL" in describe_status(path, fits)[1]


def test_a_fit_that_ended_before_its_summary_was_written_is_said_to_be_stopped(tmp_path, monkeypatch):
    """Two seconds after it was told to stop a fit ends, whatever it does."""
    monkeypatch.chdir(tmp_path)
    path = runs.OUTPUTS / "2026-11-21" / "08-30-00-123456"
    path.mkdir(parents=True)
    for code in (128 + signal.SIGINT, -signal.SIGINT):
        runs.write_begun(path, {"process": 0, "words": [], "ended": code})
        assert describe_status(path, Fits()) == ("interrupted", "the fit was stopped.")
    (path / "config.yaml").touch()
    (path / "checkpoints").mkdir()
    (path / "checkpoints" / f"10{SUFFIX}").touch()
    assert "Resume" in describe_status(path, Fits())[1]


def test_a_fit_that_outlives_its_server_is_found_by_the_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "import sys, time; from pathlib import Path; from node_fit.storage.files import lock\n"
    code += "with lock(Path(sys.argv[1]) / '.lock'): print('held', flush=True); time.sleep(60)"
    path = runs.OUTPUTS / "2026-11-21" / "08-30-00-123456"
    path.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        runs.write_begun(path, {"process": process.pid, "words": [], "ended": None})
        later = Fits()
        assert later.running() == path and describe_status(path, later)[0] == "running"
        with pytest.raises(Busy):
            later.begin(["effort=quick"])
        later.stop(path)
    assert describe_status(path, later)[0] == "killed"
