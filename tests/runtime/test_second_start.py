"""The compilation cache between processes: programs are found, damaged ones do no harm, and faults never stop a run."""

import json
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import pytest
from helpers.commands import DIRECT, ENVIRONMENT, Ran, node_fit, read_summary, read_table, spirals, write_table

from node_fit.runtime.compilation import LARGEST_CACHE, OURS, keep_programs, prune, user_folder

pytestmark = pytest.mark.slow

# The environment of a user's process, unlike that of the other tests.
USER = {"JAX_ENABLE_COMPILATION_CACHE": "true", "PYTHONWARNINGS": "error::UserWarning", "XLA_FLAGS": ""}
PROGRAMS = 3
SMALL = f"""
import json
import jax
import jax.numpy as jnp
from node_fit.runtime.compilation import Compilations, count_calls
from node_fit.runtime.compilation import keep_programs

keep_programs(SETTING)
with count_calls(Compilations()) as count:
    # All programs share one name, so a damaged one must be distinguished from the intact ones.
    values = [float(jax.jit(lambda x, n=n: jnp.sin(x) + n)(0.0)) for n in range({PROGRAMS})]
assert values == [0.0, 1.0, 2.0], values
print(json.dumps([count.count, count.cached]))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of one config: without a cache, with an empty cache, and with the cache that the second run left."""
    folder = tmp_path_factory.mktemp("second")
    write_table(folder / "mine.csv", spirals())

    def run(name: str, *arguments: str) -> None:
        cache = str(folder / ("none" if arguments else "cache"))
        ran = node_fit(folder, *DIRECT, *arguments, f"hydra.run.dir={name}", XDG_CACHE_HOME=cache, **USER)
        assert (ran.code, ran.err) == (0, ""), ran

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda given: run(*given), [("off", "compile_cache=false"), ("first",)]))
    run("second")
    return folder


def result(run: Path) -> tuple[bytes, list]:
    """The exact results of a run, without the seconds."""
    log = [{key: value for key, value in row.items() if key != "seconds"} for row in read_table(run / "metrics.csv")]
    return (run / "predictions.csv").read_bytes(), log


@pytest.mark.long
def test_the_second_process_compiles_nothing(runs):
    counts = [(read_summary(runs / run)["compiles"], read_summary(runs / run)["cached"]) for run in ("off", "first")]
    assert not (runs / "none" / "node_fit").exists()
    assert counts[0] == counts[1] and counts[0][0] >= 1 and counts[0][1] == 0
    second = read_summary(runs / "second")
    assert (second["compiles"], second["cached"]) == (0, counts[0][0])


def test_results_are_the_same_to_the_last_digit(runs):
    assert result(runs / "off") == result(runs / "first") == result(runs / "second")


def test_predictions_compile_nothing_either(runs):
    """Adaptive solves also need no program that can't be cached."""
    cache = {"XDG_CACHE_HOME": str(runs / "cache"), "JAX_EXPLAIN_CACHE_MISSES": "true"}
    said = []
    for _ in range(2):
        arguments = ("second", "--data", "mine.csv", "--out", "predicted.csv", "--overwrite")
        ran = node_fit(runs, *arguments, module="node_fit.predict", **USER, **cache)
        assert ran.code == 0, ran
        said.append(ran.err)
    missed = "PERSISTENT COMPILATION CACHE MISS"
    assert missed in said[0] and missed not in said[1], said[1]


def small(cache: Path, setting: str = '"auto"', before: str = "", **environment: str) -> Ran:
    """Runs a process that compiles a few small programs."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(before) + SMALL.replace("SETTING", setting)],
        env={**ENVIRONMENT, **USER, "XDG_CACHE_HOME": str(cache), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def counts(ran: Ran) -> list[int]:
    """How many programs a small process has compiled, and how many it has found in the cache."""
    assert ran.code == 0, ran
    return json.loads(ran.out)


def entries(cache: Path) -> list[Path]:
    return sorted((cache / "node_fit" / "programs").glob("*-cache"))


def test_damaged_programs_are_made_anew(tmp_path):
    assert counts(small(tmp_path))[1] == 0
    whole = {path: path.read_bytes() for path in entries(tmp_path)}
    for path, damage in zip(whole, (lambda x: x[: len(x) // 2], lambda x: b"", lambda x: bytes(len(x))), strict=True):
        path.write_bytes(damage(whole[path]))
    ran = small(tmp_path)
    assert counts(ran) == [PROGRAMS, 0] and not ran.err
    assert entries(tmp_path) == list(whole) and all(path.stat().st_size > 100 for path in whole)
    assert counts(small(tmp_path)) == [0, PROGRAMS]


def test_no_folder_can_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    ran = small(tmp_path / "file")
    assert counts(ran) == [PROGRAMS, 0]
    assert len(ran.err.splitlines()) == 1 and "compile_cache" in ran.err


def test_full_disk(tmp_path):
    """The system refuses to write more than a few bytes per file; no half-written file may remain."""
    limit = """
    import resource
    import node_fit
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
    """
    ran = small(tmp_path, before=limit)
    assert counts(ran) == [PROGRAMS, 0]
    assert len(ran.err.splitlines()) == 1 and str(tmp_path) in ran.err
    assert not entries(tmp_path)


def test_processes_share_a_folder(tmp_path):
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: small(tmp_path), range(3)))
    assert all(sum(counts(ran)) == PROGRAMS and not ran.err for ran in done)
    assert counts(small(tmp_path)) == [0, PROGRAMS]


def test_what_the_user_says(tmp_path):
    own, chosen = tmp_path / "own", tmp_path / "chosen"
    assert counts(small(tmp_path / "cache", JAX_COMPILATION_CACHE_DIR=str(own)))[1] == 0
    assert len(list(own.glob("*-cache"))) == PROGRAMS
    assert counts(small(tmp_path / "cache", setting=repr(str(chosen)), JAX_COMPILATION_CACHE_DIR=str(own)))[1] == 0
    assert len(list((chosen / OURS).glob("*-cache"))) == PROGRAMS
    assert counts(small(tmp_path / "cache", setting="False", JAX_COMPILATION_CACHE_DIR=str(own))) == [PROGRAMS, 0]
    assert not (tmp_path / "cache").exists()


def test_the_library_leaves_the_process_alone(tmp_path):
    code = (
        "import gc, os; before = gc.get_threshold(), dict(os.environ); import node_fit, jax;"
        "assert (gc.get_threshold(), dict(os.environ)) == before;"
        "assert jax.config.jax_compilation_cache_dir is None"
    )
    environment = {**ENVIRONMENT, **USER, "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_only_files_of_our_own_are_ever_removed(tmp_path):
    """A folder that the user names may hold anything, also more of it than a cache may hold."""
    for name in ("thesis.txt", "jit_mine-0-cache"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(LARGEST_CACHE)
    (tmp_path / OURS).mkdir()
    (tmp_path / OURS / "notes.txt").write_text("mine")
    setting, before = str(tmp_path), jax.config.jax_compilation_cache_dir
    try:
        keep_programs(setting)
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / OURS)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    prune(tmp_path / OURS, 0)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"thesis.txt", "jit_mine-0-cache", f"{OURS}/notes.txt"}


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    # The times at which each file was last read and written.
    for name, times in {"new": (100, 400), "used": (300, 100), "old": (200, 200)}.items():
        (tmp_path / f"{name}-cache").write_bytes(bytes(100))
        os.utime(tmp_path / f"{name}-cache", times)
    prune(tmp_path, 300)
    assert len(list(tmp_path.iterdir())) == 3
    prune(tmp_path, 250)
    assert {path.name for path in tmp_path.iterdir()} == {"new-cache", "used-cache"}
    prune(tmp_path, 0)
    assert not list(tmp_path.iterdir())


def test_folder_of_the_user(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert user_folder() == Path("/somewhere/node_fit/programs")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # The specification says to ignore it.
    assert user_folder() == Path.home() / ".cache/node_fit/programs"
