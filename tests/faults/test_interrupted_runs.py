"""The command after SIGKILL, and `resume=` after that."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.commands import ENVIRONMENT, begun, node_fit, read_summary, read_table, spirals, write_table

import node_fit as nf
from faults.runs import LONG, chunks, copy_of, folder_in, killed, last_step, metrics_of, model_of, unheard
from node_fit.storage.checkpoint import steps_in

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.getbasetemp()


@pytest.fixture(scope="module")
def run(base):
    """The directory of the killed run, unchanged."""
    return killed(base)[0]


# The arguments and the environment of each run.
WAYS = {
    "whole": (LONG, {}),
    "plain": ((), {"XLA_FLAGS": f"{ENVIRONMENT['XLA_FLAGS']} --xla_force_host_platform_device_count=3"}),
    "best": (("resume_from=best", "precision=x64"), {}),
}


@pytest.fixture(scope="module")
def ended(base, run):
    """An uninterrupted run, and the killed run resumed in two ways: on other devices with closed output, and from its
    best checkpoint in float64 where plots can't be drawn."""
    folder = folder_in(base)
    for name in set(WAYS) - {"whole"}:
        copy_of(run, name)
    torn(folder / "plain")
    shutil.rmtree(folder / "best" / "plots", ignore_errors=True)  # It may hold a picture from before the kill.
    (folder / "best" / "plots").write_text("a file in the way")

    def go(name):
        given, environment = WAYS[name]
        place = "hydra.run.dir=whole" if name == "whole" else f"resume={name}"
        command = unheard if name == "plain" else node_fit
        return folder / name, command(folder, place, *given, **environment)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(WAYS, pool.map(go, WAYS), strict=True))


def torn(run):
    """A run directory with files as a kill or a power failure may leave them."""
    with open(run / "metrics.csv", "a") as file:
        file.write("15,mai")
    (run / ".summary.json.abcd1234").write_text("{")
    (run / "checkpoints" / ".16.safetensors.abcd1234").write_bytes(b"half")


def test_a_kill_costs_at_most_a_chunk(run):
    assert last_step(run) >= chunks(run) - 1 >= 4


@pytest.mark.long
def test_a_killed_run_ends_as_one_that_was_not(ended):
    """Also on a different number of devices, and with closed output."""
    whole, plain = ended["whole"][0], ended["plain"][0]
    for name in ("whole", "plain"):
        assert ended[name][1].code == 0 and ended[name][1].err == "", ended[name]
    assert model_of(plain) == model_of(whole)
    assert metrics_of(plain) == metrics_of(whole)
    assert (plain / "predictions.csv").read_bytes() == (whole / "predictions.csv").read_bytes()
    assert read_summary(plain)["status"] == "completed"


def test_what_the_kill_left_is_swept(ended):
    run, _ = ended["plain"]
    assert not [path.name for path in run.iterdir() if path.name.startswith(".summary")]
    assert len(list((run / "checkpoints").iterdir())) == len(steps_in(run / "checkpoints"))


def test_the_best_is_gone_on_with(run, ended):
    again, ran = ended["best"]
    assert ran.code == 0, ran
    losses = {int(row["step"]): float(row["validation_loss"]) for row in read_table(run / "metrics.csv")}
    best = min(steps_in(run / "checkpoints"), key=lambda step: (losses[step], -step))
    assert f"resuming from step {best}\n" in ran.out
    rows = read_table(again / "metrics.csv")
    assert [int(row["step"]) for row in rows] == list(range(1, 17)), "steps must have no gap and no repeat"
    assert last_step(again) == 16, "later checkpoints must be written"


def test_another_precision_is_cast_aloud(ended):
    run, ran = ended["best"]
    assert ran.code == 0, ran
    assert "float32" in ran.err and "cast to float64" in ran.err
    assert read_summary(run)["precision"] == "x64"
    assert nf.load(run / "model.safetensors").scaler.state_scale.dtype == "float64"


def test_plots_that_fail_are_a_warning(ended):
    run, ran = ended["best"]
    assert ran.code == 0
    (said,) = [line for line in ran.err.splitlines() if "plots" in line]
    assert "not drawn" in said
    assert all((run / name).is_file() for name in ("model.safetensors", "predictions.csv", "summary.json"))


def test_a_second_process_is_refused(base, run):
    second = killed(base)[1]
    assert second.code == 1
    assert "another process is using" in second.sentence and str(run) in second.sentence
    assert second.err == f"error: {second.sentence}\n"


def test_two_runs_of_one_moment_get_directories_of_their_own(base):
    """Both runs fail early on missing data, but Hydra creates their directories before that."""
    together = [begun(folder_in(base), "data=table", "data.path=none.csv", "data.states=[x]") for _ in range(2)]
    for process in together:
        process.communicate(timeout=60)
    assert len(list((folder_in(base) / "outputs").glob("*/*/summary.json"))) == 2


def changed(values):
    return [row | values(row) for row in spirals()]


OTHER_TABLES = {
    "one number": lambda: changed(lambda row: {"x": row["x"] + 1e-9} if row["t"] == 0 else {}),
    "more rows": lambda: spirals(times=16),
}


@pytest.mark.parametrize("name", OTHER_TABLES)
def test_other_data_are_refused_with_the_differences(base, run, name):
    folder = folder_in(base) / name.replace(" ", "_")
    folder.mkdir()
    shutil.copytree(run, folder / "run")
    write_table(folder / "mine.csv", OTHER_TABLES[name]())
    point_to(folder / "run", folder)
    before = files(folder / "run")
    ran = node_fit(folder, "resume=run")
    assert ran.code == 1 and ran.err == f"error: {ran.sentence}\n"
    said = ran.sentence
    assert "train data differ" in said and said.count("sha256") == 2 and "rows of x, y" in said
    assert files(folder / "run") == before, "a refusal changes nothing"


def point_to(run, folder):
    """Makes a copied run resolve its relative paths in a folder."""
    record = json.loads((run / ".run.json").read_text())
    (run / ".run.json").write_text(json.dumps(record | {"cwd": str(folder)}))


def files(run):
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_if_every_checkpoint_is_bad_there_is_no_fresh_start(base, run):
    copy_of(run, "bad")
    bad = folder_in(base) / "bad"
    for path in (bad / "checkpoints").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    ran = node_fit(folder_in(base), "resume=bad")
    assert ran.code == 1
    assert "every checkpoint is damaged" in ran.sentence and str(bad / "checkpoints") in ran.sentence
    assert "Traceback" not in ran.err
    assert chunks(bad) == chunks(run)


def test_resume_from_needs_a_run_and_a_known_word(base, run):
    for given, words in (
        (("resume_from=best",), "also name the run with resume="),
        (("resume=killed", "resume_from=bset"), "latest, best"),
    ):
        ran = node_fit(folder_in(base), *given)
        assert ran.code == 1 and words in ran.sentence


def test_a_second_start_does_not_spoil_how_the_first_goes_on(base, run):
    """Hydra overwrites its record of the command before the job can refuse."""
    copy_of(run, "taken")
    before = (run / ".run.json").read_bytes()
    ran = node_fit(folder_in(base), "data=oscillator", "seed=9", "hydra.run.dir=taken")
    assert ran.code == 1 and "already holds a run" in ran.sentence
    assert (folder_in(base) / "taken" / ".run.json").read_bytes() == before
