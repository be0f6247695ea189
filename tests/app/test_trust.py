"""Files of strangers and files of the user's own: nothing in a run directory is run, and no file is lost."""

import errno
import functools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers.commands import ENVIRONMENT, in_process, node_fit, read_table, write_table
from helpers.reports import by_trajectory, spirals, write_run
from omegaconf import OmegaConf

import node_fit as nf
from node_fit.app import launching
from node_fit.app.config.composition import CALLBACKS, ConfigError, check_hydra
from node_fit.app.run_directory import RunDirectory, RunExists, with_resumed
from node_fit.data.table_source import Table
from node_fit.export.__main__ import main as export
from node_fit.export.__main__ import training_data
from node_fit.predict import main as predict
from node_fit.report.__main__ import main as report
from node_fit.runtime.placement import carry
from node_fit.storage.files import explain_disk, pack, unpack, write_file
from node_fit.storage.model_file import save

TABLE = {"_target_": "node_fit.Table", "path": "mine.csv", "time": "t", "states": ["x"], "trajectory": "id"}
# A module that leaves a file behind when it is imported.
EVIL = "open('ran', 'w').close()\ndef table(**_): ...\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a small run of a known model, and a table."""
    ts, ys = np.linspace(0.0, 1.0, 4), np.exp(-np.linspace(0.0, 1.0, 4))[None, :, None]
    data = nf.Dataset.from_arrays(ts, ys, states=("x",))
    field = functools.partial(nf.Known, equations={"x": "-x"}, constants={})
    run = tmp_path / "run"
    run.mkdir()
    save(carry(nf.make_model(data, field=field, key=jax.random.key(0)), np.float32), run / "model.safetensors")
    put_config(tmp_path)
    write_table(tmp_path / "mine.csv", [{"id": "A", "t": t, "x": y} for t, y in zip(ts, ys[0, :, 0], strict=True)])
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("evil", None)


def put_config(folder: Path, **change) -> None:
    content = {"extensions": [], "data": TABLE, **change}
    (folder / "run" / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(content)))


def predicting(folder: Path, *arguments: str, data: str = "mine.csv", out: str = "out.csv"):
    return in_process(predict, folder, "run", "--data", data, "--out", out, *arguments)


# Nothing in a run directory is run.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extensions": ["evil"]}, None),
        ({"extensions": ["evil"], "data": {**TABLE, "_target_": "evil.table"}}, ["data._target_", "'evil.table'"]),
        ({"data": {**TABLE, "_target_": "node_fit.Fit"}}, ["data._target_", "node_fit.Table"]),
        ({"data": {**TABLE, "units": {"_target_": "node_fit.Split"}}}, ["names a constructor"]),
        ({"data": {**TABLE, "split": {"_target_": "evil.table"}}, "extensions": ["evil"]}, None),
        ({"data": [1, 2]}, ["does not describe the data"]),
        ({"data": {**TABLE, "qqq": 1}}, ["data.qqq"]),
        ({"data": {**TABLE, "states": 3}}, ["data.states"]),
        ({"evaluation": {"level": "high"}}, ["evaluation.level"]),
    ],
)
def test_nothing_that_a_run_directory_names_is_called(folder, change, words):
    put_config(folder, **change)
    ran = predicting(folder)
    if words is None:
        assert ran.code == 0, ran
    else:
        assert ran.code == 1 and all(word in ran.sentence for word in words), ran
    assert "evil" not in sys.modules and not (folder / "ran").exists()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe\x00",
        b"a: [1,",
        b"- 1",
        b"data: " + b"[" * 600,
        b"a: &a [x,x]\n" + b"".join(b"%c: &%c [*%c,*%c]\n" % (b, b, b - 1, b - 1) for b in range(98, 122)),
        b"#" * (5 << 20),
        b"data: ${oc.env:HOME}",
        b"data: {_target_: node_fit.Table, path: x, time: t, states: ['${oc.env:HOME}']}",
        b"data: !!python/object/apply:os.system [touch ran]",
    ],
    ids=range(10),
)
def test_a_config_that_is_none_is_refused_in_a_sentence(folder, text):
    (folder / "run" / "config.yaml").write_bytes(text)
    ran = predicting(folder)
    assert ran.code == 1 and len(ran.sentence) < 500, ran
    assert not (folder / "out.csv").exists() and not (folder / "ran").exists()
    assert str(Path.home()) not in ran.sentence or str(folder).startswith(str(Path.home()))


def test_the_programs_of_a_run_directory_are_not_run(folder, monkeypatch):
    """A folder of compiled programs is machine code."""
    used = []
    monkeypatch.setattr("node_fit.predict.keep_programs", used.append)
    put_config(folder, compile_cache=str(folder / "run"))
    assert predicting(folder).code == 0
    put_config(folder, compile_cache=False)
    assert predicting(folder, "--overwrite").code == 0
    assert used == ["auto", False]


@pytest.fixture
def strange_run(folder):
    """A run of a stranger: its model file names a class of a module in the current folder."""
    splits = by_trajectory(spirals(2))
    run = write_run(folder / "strange", splits)
    model = nf.make_model(splits["train"], field=functools.partial(nf.MLP, width=4), key=jax.random.key(0))
    save(carry(model, np.float32), run / "model.safetensors")
    content, tensors = unpack(run / "model.safetensors")
    content["model"]["fields"]["field"] = {"class": "evil:Evil", "fields": {}}
    pack(run / "model.safetensors", content, tensors)
    (run / "config.yaml").write_text("extensions: [evil]\ndata: {units: {x: m}}\n")
    return run


def test_a_page_imports_nothing_that_a_run_directory_names(folder, strange_run):
    ran = in_process(report, folder, "strange")
    assert ran.code == 0 and "warning: the page lacks the vector field" in ran.err, ran
    assert "evil:Evil" in ran.err and (strange_run / "report.html").is_file()
    assert "evil" not in sys.modules and not (folder / "ran").exists()
    several = folder / "several"
    several.mkdir()
    shutil.move(strange_run, several / "0")
    (several / "0" / "report.html").unlink()
    assert in_process(report, folder, "several").code == 0
    assert (several / "index.html").is_file() and "evil" not in sys.modules and not (folder / "ran").exists()


def test_a_page_imports_what_the_caller_names(folder, strange_run):
    in_process(report, folder, "strange", "--extensions", "evil")
    assert (folder / "ran").exists()


BOMB = b"a: &a [x,x]\n" + b"".join(b"%c: &%c [*%c,*%c]\n" % (b, b, b - 1, b - 1) for b in range(98, 122))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", BOMB + b"data: {units: *y}\n"),
        ("config.yaml", b"data: {units: !!python/object/apply:os.system [touch ran]}"),
        ("config.yaml", b"data: [1]"),
        ("config.yaml", b"#" * (5 << 20)),
        ("config.yaml", b"a: " + b"[" * 3000),
        ("summary.json", b'{"diagnosis": 3, "metrics": [1], "baselines": "x", "rows": null}'),
        ("summary.json", b'{"ensemble": {"members": 3}, "starts": [], "confidence": 1}'),
        ("summary.json", b'{"ensemble": {"members": [{}]}}'),
        ("summary.json", b"[" * 5000),
        (".run.json", b'{"cwd": 3, "overrides": [4], "config_dirs": {}}'),
        ("metrics.csv", b"step,stage\nx,y\n"),
        ("metrics.csv", b"\xff\xfe"),
        ("predictions.csv", b"\xff\xfe"),
        ("predictions.csv", b"split,trajectory,t,x,x_predicted,scored\ntrain,a,later,1,1,1\n"),
        ("predictions.csv", b"split\n"),
        (".curves.npz", b"PK\x03\x04"),
        ("model.safetensors", b"\x08" * 100),
    ],
    ids=range(17),
)
def test_a_page_of_a_strange_directory_is_made_or_refused_in_a_sentence(folder, name, content):
    run = write_run(folder / "strange", by_trajectory(spirals(2)))
    (run / name).write_bytes(content)
    ran = in_process(report, folder, "strange")
    assert ran.code == 0 or (ran.code == 1 and len(ran.sentence) < 500), ran
    assert not (folder / "ran").exists()
    assert ran.code == 1 or (run / "report.html").stat().st_size < 8 << 20


def refused_resume(folder: Path, *arguments: str, **change) -> str:
    """Why a run whose record was changed is not resumed."""
    record = {"overrides": ["seed=1"], "config_dirs": [], "cwd": str(folder), "data": {}, **change}
    (folder / "run" / ".run.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError) as caught:
        with_resumed([f"resume={folder / 'run'}", *arguments])
    return str(caught.value)


def test_a_record_gives_no_options_to_hydra(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for change in (
        {"overrides": ["--experimental-rerun=evil.pickle"]},
        {"overrides": ["-cn", "evil"]},
        {"overrides": ["+hydra.callbacks.a._target_=evil.table"]},
        {"overrides": ["++hydra/launcher=evil"]},
        {"overrides": [["seed=1"]]},
        {"config_dirs": ["--config-path"]},
        {"cwd": 3},
    ):
        assert ".run.json can't be read" in refused_resume(folder, **change)


def test_what_runs_code_comes_from_the_caller_alone(folder, monkeypatch):
    monkeypatch.chdir(folder)
    put_config(folder, extensions=["evil"], compile_cache=str(folder / "run"))
    record = {"overrides": ["extensions=[evil]", "compile_cache=run"]}
    assert "'extensions=[evil]'" in refused_resume(folder, **record)
    resume = f"resume={folder / 'run'}"
    words = with_resumed([resume, "extensions=[evil]"])
    assert [word for word in words if word.startswith(("compile_cache", "extensions"))] == [
        "compile_cache=auto",
        "extensions=[evil]",
    ]
    put_config(folder, compile_cache=False)
    assert not [word for word in with_resumed([resume]) if word.startswith(("compile_cache", "extensions"))]
    assert "evil" not in sys.modules


def test_hydra_calls_no_target_of_a_config_group(folder):
    (folder / "conf" / "experiment").mkdir(parents=True)
    group = "# @package _global_\nhydra: {callbacks: {mine: {_target_: node_fit.storage.files.write_file, path: x}}}\n"
    (folder / "conf" / "experiment" / "mine.yaml").write_text(group)
    ran = node_fit(folder, "--config-dir", "conf", "experiment=mine")
    assert ran.code == 1 and "hydra.callbacks.mine._target_ must be one of" in ran.sentence, ran
    for key in ("hydra.callbacks.mine", "hydra.launcher.mine", "hydra.job_logging.handlers.mine"):
        config = OmegaConf.create({"extensions": ["house"], "hydra": {}})
        for target, is_allowed in (("house.Callback", True), (CALLBACKS[0], True), ("shutil.rmtree", False)):
            OmegaConf.update(config, key, {"_target_": target})
            with nullcontext() if is_allowed else pytest.raises(ConfigError, match=re.escape(key)):
                check_hydra(config)


# No file of the user's is lost.


def test_an_output_that_exists_is_replaced_only_if_asked(folder):
    before = (folder / "mine.csv").read_bytes()
    for arguments in ((), ("--overwrite",)):
        assert "--data" in predicting(folder, *arguments, out="mine.csv").sentence
    (folder / "link.csv").symlink_to("mine.csv")
    assert "--data" in predicting(folder, "--overwrite", out="link.csv").sentence
    (folder / "out.csv").write_text("mine")
    assert "--overwrite" in predicting(folder).sentence
    assert (folder / "out.csv").read_text() == "mine" and (folder / "mine.csv").read_bytes() == before
    assert predicting(folder, "--overwrite").code == 0
    assert len(read_table(folder / "out.csv")) == 4


@pytest.mark.long
@pytest.mark.slow
def test_links_are_followed_and_devices_written_through(folder):
    (folder / "target.csv").write_text("mine")
    (folder / "link.csv").symlink_to("target.csv")
    assert predicting(folder, "--overwrite", out="link.csv").code == 0
    assert (folder / "link.csv").is_symlink() and len(read_table(folder / "target.csv")) == 4
    command = [sys.executable, "-m", "node_fit.predict", "run", "--data", "mine.csv", "--out"]
    told = {"cwd": folder, "env": ENVIRONMENT, "capture_output": True, "text": True, "check": False}
    ran = subprocess.run([*command, "/dev/stdout"], **told)
    assert (ran.returncode, ran.stdout.count("\n")) == (0, 5) and "4 rows" in ran.stderr
    os.mkfifo(folder / "pipe")
    before = os.stat("/dev/null")
    ran = subprocess.run(["sh", "-c", f"cat pipe > got & {' '.join(command)} pipe; wait"], **told)
    assert len(read_table(folder / "got")) == 4 and stat.S_ISFIFO(os.stat(folder / "pipe").st_mode), ran
    assert predicting(folder, out="/dev/null").code == 0
    assert os.stat("/dev/null").st_rdev == before.st_rdev and stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_new_files_have_the_permissions_of_the_umask_and_others_their_own(tmp_path):
    before = os.umask(0o077)
    try:
        write_file(tmp_path / "private", b"1")
        os.umask(0o022)
        write_file(tmp_path / "public", b"1")
        (tmp_path / "public").chmod(0o640)
        write_file(tmp_path / "public", b"2")
        write_file(tmp_path / "open", b"1")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"private": 0o600, "public": 0o640, "open": 0o644}


@pytest.mark.parametrize(
    "name",
    [
        "metrics.csv", "model.safetensors", "predictions.csv", "config.yaml", "summary.json", "plots/fit.png",
        "checkpoints/last.pt",
    ],
)  # fmt: skip
def test_a_new_run_replaces_no_file_of_the_users(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"mine": 1}')
    with pytest.raises(RunExists, match=re.escape(str(tmp_path / name.partition("/")[0]))):
        RunDirectory(tmp_path).check_unused()


def test_what_a_run_of_ours_left_is_in_nobodys_way(tmp_path):
    RunDirectory(tmp_path).write_summary({"status": "failed", "reason": "a typo", "overrides": []})
    RunDirectory(tmp_path).check_unused()
    RunDirectory(tmp_path).write_record({}, {})
    (tmp_path / "metrics.csv").write_text("step\n")
    RunDirectory(tmp_path).check_unused()


def test_a_run_among_the_users_files_is_refused_before_work(folder):
    shutil.rmtree(folder / "run")
    mine = {"predictions.csv": "mine", "summary.json": "[]", "leaderboard.csv": "place,name\n"}
    for name, text in mine.items():
        (folder / name).write_text(text)
    table = ("data=table", "data.path=mine.csv", "data.time=t", "data.states=[x]", "data.trajectory=id")
    for wrong in ((), ("precision=x16",)):
        ran = node_fit(folder, *table, "hydra.run.dir=.", *wrong)
        assert ran.code == 1 and ("predictions.csv is in the way" in ran.sentence or wrong), ran
    ran = node_fit(folder, "-m", *table, "seed=-1,-2", "hydra.sweep.dir=.")
    assert ran.code == 1 and "leaderboard.csv is not written" in ran.err, ran
    assert {name: (folder / name).read_text() for name in mine} == mine
    assert not (folder / "metrics.csv").exists()


def test_an_export_uses_the_data_of_a_run_only_if_they_are_those_of_its_record(folder):
    """A stranger's config may name any file of this machine, and the export would hold rows of it."""
    words = "run", "--to", "numpy", "--out", "exported"
    ran = in_process(export, folder, *words)
    assert ran.code == 1 and "is not what the model was fitted to, by the run's record; name the files" in ran.err
    assert not (folder / "exported").exists()
    split = nf.Split(validation=0.0, test=0.0)
    table = Table(path=str(folder / "mine.csv"), time="t", states=["x"], trajectory="id", split=split)
    config = {"data": TABLE}
    RunDirectory(folder / "run").write_record({}, table.load().named())
    np.testing.assert_array_equal(training_data(folder / "run", config, table).ys, table.load().train.ys)
    (folder / "mine.csv").write_text((folder / "mine.csv").read_text().replace("1.0", "1.5"))
    with pytest.raises(ValueError, match="is not what the model was fitted to"):
        training_data(folder / "run", config, table)


@pytest.mark.parametrize(("code", "says"), [(errno.ENOSPC, "free some space there"), (errno.EROFS, "write to another")])
@pytest.mark.parametrize("command", [predict, export, report])
def test_a_disk_that_can_t_be_written_is_named_with_a_fix(folder, monkeypatch, command, code, says):
    def fails(handle):
        raise OSError(code, os.strerror(code))

    words = {
        predict: ("run", "--data", "mine.csv", "--out", "out.csv"),
        export: ("run/model.safetensors", "--to", "numpy", "--out", "exported"),
        report: ("run",),
    }[command]
    monkeypatch.setattr(os, "fsync", fails)
    ran = in_process(command, folder, *words)
    assert ran.code == 1 and ran.err.startswith(f"error: {folder}") and ran.err.count("\n") == 1
    assert says in ran.err and os.strerror(code) in ran.err and "Errno" not in ran.err
    assert code == errno.ENOSPC or {report: "folder, to which you copy the run"}.get(command, "--out") in ran.err


def test_an_error_of_a_write_names_the_file_and_not_the_one_on_the_way_to_it(tmp_path):
    for path in (tmp_path / "absent" / "p.csv", tmp_path / ("n" * 300)):
        with pytest.raises(OSError) as caught:
            write_file(path, b"")
        assert caught.value.filename == str(path)
    assert (
        "can't be a path (File name too long); a file or folder may have a name of at most 255 bytes"
        in explain_disk(caught.value, tmp_path)
    )


def test_a_disk_on_which_a_run_can_t_begin_is_named(tmp_path, monkeypatch, capsys):
    """Hydra writes its own files before the run, and its errors name none."""
    config = OmegaConf.create({"hydra": {"run": {"dir": str(tmp_path / "run")}}})

    def fails(*arguments, **keywords):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(launching, "run_job", fails)
    monkeypatch.setattr(launching, "check_equations", lambda config: None)
    with pytest.raises(OSError) as caught:
        launching.run_checked_job(config=config, job_dir_key="hydra.run.dir")
    launching.print_error(caught.value)
    assert capsys.readouterr().err == (
        f"error: {tmp_path / 'run'} can't be written: the disk or a quota is full (No space left on device); free some "
        "space there.\n"
    )
