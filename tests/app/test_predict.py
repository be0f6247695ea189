"""`python -m node_fit.predict`: predictions of a fitted model for new data."""

import json

import numpy as np
import pytest
from helpers.commands import driven, in_process, node_fit, read_table, spirals, write_table

import node_fit as nf
from node_fit.__main__ import main as run
from node_fit.predict import main
from node_fit.storage.files import peek

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, ran = driven(tmp_path_factory.getbasetemp())
    assert ran.code == 0, ran
    return folder


@pytest.fixture(scope="module")
def predicted(folder):
    """Predictions for a new trajectory of which only the first row is known."""
    rows = spirals(trajectories=("N",))
    write_table(folder / "new.csv", [row if row["t"] == 0 else row | {"x": "", "y": ""} for row in rows])
    ran = node_fit(folder, "run", "--data", "new.csv", "--out", "predictions.csv", module="node_fit.predict")
    assert ran.code == 0, ran
    return folder, ran


def test_predictions_are_those_of_the_model(predicted):
    folder, _ = predicted
    rows = read_table(folder / "predictions.csv")
    data = nf.read_table(folder / "new.csv", time="t", states=["x", "y"], inputs=["u"], trajectory="id")
    expected = nf.load(folder / "run" / "model.safetensors").predict(data)[0]
    written = np.array([[float(row["x_predicted"]), float(row["y_predicted"])] for row in rows])
    np.testing.assert_allclose(written, expected, rtol=1e-5, atol=1e-6)
    assert [float(row["t"]) for row in rows] == [row["t"] for row in spirals(trajectories=("N",))]
    assert {row["trajectory"] for row in rows} == {"N"}


def test_predictions_start_at_the_measurement_and_need_no_other(predicted):
    rows = read_table(predicted[0] / "predictions.csv")
    for state in ("x", "y"):
        assert float(rows[0][f"{state}_predicted"]) == pytest.approx(float(rows[0][state]), abs=1e-6)
        assert all(row[state] == "" for row in rows[1:])


def test_checkpoints_carry_the_identity_of_their_run(folder):
    identity = json.loads((folder / "run" / ".run.json").read_text())["run"]
    assert len(identity) == 32
    assert {peek(path)["run"] for path in (folder / "run" / "checkpoints").iterdir()} == {identity}


def test_what_it_says(predicted):
    _, ran = predicted
    assert ran.err == "" and "predictions.csv" in ran.out and "15 rows" in ran.out


def refused(monkeypatch, capsys, folder, *arguments) -> str:
    """The error message of a command that exits with 1."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["predict", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("error: ")
    return err


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("lost.csv", ["lost.csv"]),
        ("no_input.csv", ["no_input.csv", "'u'"]),
        ("oops.csv", ["oops.csv", "line 3", "'u'", "'oops'"]),
        ("no_start.csv", ["'y'", "'N'"]),
    ],
)
def test_wrong_data(folder, monkeypatch, capsys, data, words):
    rows = spirals(trajectories=("N",))
    write_table(folder / "no_input.csv", [{key: row[key] for key in ("id", "t", "x", "y")} for row in rows])
    write_table(folder / "oops.csv", [rows[0], rows[1] | {"u": "oops"}, *rows[2:]])
    write_table(folder / "no_start.csv", [row | {"y": ""} for row in rows])
    sentence = refused(monkeypatch, capsys, folder, "run", "--data", data, "--out", "none.csv")
    assert all(word in sentence for word in words)
    assert not (folder / "none.csv").exists()


def test_no_run(folder, monkeypatch, capsys):
    assert "later.csv" in refused(monkeypatch, capsys, folder, "later.csv", "--data", "mine.csv", "--out", "none.csv")


def test_damaged_model(folder, tmp_path, monkeypatch, capsys):
    content = bytearray((folder / "run" / "model.safetensors").read_bytes())
    content[-3] ^= 1
    (tmp_path / "model.safetensors").write_bytes(content)
    (tmp_path / "config.yaml").write_bytes((folder / "run" / "config.yaml").read_bytes())
    sentence = refused(monkeypatch, capsys, folder, str(tmp_path), "--data", "mine.csv", "--out", "none.csv")
    assert "damaged" in sentence


def test_nowhere_to_write(folder, monkeypatch, capsys):
    arguments = ("run", "--data", "mine.csv", "--out", "nowhere/predictions.csv")
    sentence = refused(monkeypatch, capsys, folder, *arguments)
    assert "nowhere" in sentence and "Errno" not in sentence


def test_dates_come_back_as_dates_and_count_in_the_unit_of_the_fit(tmp_path, monkeypatch):
    rows = [{"when": f"{1 + hour // 24:02}.03.2024 {hour % 24:02}:00", "x": 0.9**hour} for hour in range(30)]
    write_table(tmp_path / "hours.csv", rows)
    write_table(
        tmp_path / "days.csv", [{"when": f"2024-05-0{day}", "x": 0.9 ** (24 * day) * 10} for day in range(1, 4)]
    )
    table = [
        "data=table",
        "data.path=hours.csv",
        "data.time=when",
        "data.states=[x]",
        "field=linear",
        "training.steps=100",
    ]
    ran = in_process(run, tmp_path, *table, "hydra.run.dir=run")
    assert (
        "time: when counts in h from 2024-03-01, chosen by its rows' spacing (data.time_unit=h); "
        "dates begin with the day (data.day_first=true)" in ran.out.replace("\n  ", " ")
    )
    assert read_table(tmp_path / "run" / "predictions.csv")[25]["when"] == "2024-03-02 01:00:00"
    ran = in_process(main, tmp_path, "run", "--data", "days.csv", "--out", "out.csv")
    found = read_table(tmp_path / "out.csv")
    assert [row["when"] for row in found] == ["2024-05-01", "2024-05-02", "2024-05-03"]
    assert float(found[1]["x_predicted"]) == pytest.approx(float(found[0]["x"]) * 0.9**24, rel=0.05)
