"""Six tables as new users bring them, through the application: what the last line says of each fit is true."""

import datetime
import html
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import Ran, at_once, read_summary, write_table
from scipy.integrate import solve_ivp

pytestmark = pytest.mark.slow


def german(folder: Path) -> list[str]:
    """A room that is heated by day: semicolons, decimal commas, a day before its month, and units in names."""
    rng, start = np.random.default_rng(0), datetime.datetime(2026, 3, 1)
    lines, room = ["Zeit;Temperatur [°C];Heizung [kW]"], 14.0
    for row in range(120):
        heating = 1.5 if row % 24 in range(6, 18) else 0.0
        when = start + datetime.timedelta(hours=row)
        shown = f"{room + 0.05 * rng.normal():.2f}".replace(".", ",")
        lines.append(f"{when:%d.%m.%Y %H:%M};{shown};{str(heating).replace('.', ',')}")
        room += 0.12 * (10 - room) + 0.9 * heating
    (folder / "messung.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ["data.path=messung.csv", "data.time=Zeit", r"data.states=['Temperatur [°C]']",
            r"data.inputs=['Heizung [kW]']", "field.width=8", "training.steps=150"]  # fmt: skip


def gaps(folder: Path) -> list[str]:
    """A pendulum in thick oil that a changing torque turns; every seventh angle is missing, and a stretch of them."""
    ts = np.linspace(0, 40, 401)
    torque = lambda t: np.sin(0.6 * t) + 0.6 * np.sin(1.7 * t + 1)  # noqa: E731
    angle = solve_ivp(
        lambda t, y: -2.0 * np.sin(y) - 0.3 * y + 1.6 * torque(t), (0, 40), [0.2], t_eval=ts, rtol=1e-8
    ).y[0]
    rng = np.random.default_rng(1)
    known = (np.arange(401) % 7 != 3) & ~((ts > 20) & (ts < 23))
    rows = [
        {"t": f"{t:.1f}", "torque": f"{torque(t):.6f}", "angle": f"{y + 1e-3 * rng.normal():.5f}" if keep else ""}
        for t, y, keep in zip(ts, angle, known, strict=True)
    ]
    write_table(folder / "record.csv", rows)
    return ["data.path=record.csv", "data.time=t", "data.states=[angle]", "data.inputs=[torque]", "field.width=16",
            "hidden=0", "restarts=1", "penalty.ridge=0", "training.steps=80"]  # fmt: skip


def doses(folder: Path) -> list[str]:
    """Twelve subjects who swallow a dose; only the plasma is measured."""
    rng, hours = np.random.default_rng(2), np.array([0.0, 0.5, 1, 2, 3, 5, 7, 9, 12, 24])
    rows, events = [], []
    for subject in range(12):
        ka, ke, volume, dose = 1.4, 0.12, 30.0, 100.0 * (1 + subject % 3)
        events.append({"subject": f"S{subject}", "h": 0.0, "state": "gut", "add": dose})
        level = dose / volume * ka / (ka - ke) * (np.exp(-ke * hours) - np.exp(-ka * hours))
        rows += [
            {"subject": f"S{subject}", "h": h, "plasma": f"{y + 0.05 * rng.normal():.3f}"}
            for h, y in zip(hours, level, strict=True)
        ]
    write_table(folder / "blood.csv", rows)
    write_table(folder / "doses.csv", events)
    return ["data.path=blood.csv", "data.time=h", "data.states=[plasma]", "data.trajectory=subject",
            "data.events=doses.csv", "hidden=[gut]", "field=known", "training.freeze=[start.hidden]",
            "+field.equations={plasma: ka*gut/V - ke*plasma, gut: -ka*gut}",
            "+field.constants={ka: [1.0, 0, null], ke: [0.2, 0, null], V: [20.0, 0, null]}",
            "training.steps=200"]  # fmt: skip


def epidemic(folder: Path) -> list[str]:
    """Cases of an epidemic in ten thousand; nobody counts who is still susceptible, nor says how many there were."""
    days = np.arange(0.0, 61.0)
    found = solve_ivp(
        lambda t, y: [-0.5 * y[0] * y[1] / 1e4, 0.5 * y[0] * y[1] / 1e4 - 0.2 * y[1]],
        (0, 60), [9990.0, 10.0], t_eval=days, rtol=1e-8,
    ).y  # fmt: skip
    rng = np.random.default_rng(3)
    write_table(folder / "cases.csv", [{"day": d, "I": f"{i * (1 + 0.02 * rng.normal()):.1f}"}
                                       for d, i in zip(days, found[1], strict=True)])  # fmt: skip
    return ["data.path=cases.csv", "data.time=day", "data.states=[I]", "hidden=[S]", "field=known",
            "+field.equations={I: beta*S*I/10000 - gamma*I, S: -beta*S*I/10000}",
            "+field.constants={beta: [0.3, 0, null], gamma: [0.1, 0, null]}", "training.steps=200"]  # fmt: skip


def chaos(folder: Path) -> list[str]:
    """Lorenz's system over many turns."""
    ts = np.linspace(0, 20, 401)
    ys = solve_ivp(
        lambda t, y: [10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]],
        (0, 20), [1.0, 1.0, 20.0], t_eval=ts, rtol=1e-9,
    ).y  # fmt: skip
    write_table(folder / "lorenz.csv", [dict(zip(("t", "x", "y", "z"), (t, *y), strict=True))
                                        for t, y in zip(ts.round(4), ys.T.round(5), strict=True)])  # fmt: skip
    return ["data.path=lorenz.csv", "data.time=t", "data.states=[x,y,z]", "field.width=16",
            "training.steps=100"]  # fmt: skip


def few(folder: Path) -> list[str]:
    """Eight rows of a decay, with the equation known; validation and test data have one row each."""
    ts, rng = np.linspace(0, 3.5, 8), np.random.default_rng(4)
    ys = 2 * np.exp(-0.7 * ts) * (1 + 0.01 * rng.normal(size=8))
    write_table(folder / "decay.csv", [{"t": t, "x": f"{y:.4f}"} for t, y in zip(ts, ys, strict=True)])
    return ["data.path=decay.csv", "data.time=t", "data.states=[x]", "field=known",
            "+field.equations={x: -k*x}", "+field.constants={k: [0.3, 0, null]}", "training.steps=100"]  # fmt: skip


TABLES = {"german": german, "gaps": gaps, "doses": doses, "epidemic": epidemic, "chaos": chaos, "few": few}


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> tuple[Path, dict[str, Ran]]:
    folder = tmp_path_factory.mktemp("newcomers")
    commands = {
        name: ["data=table", *make(folder), "training.chunk_steps=50", f"hydra.run.dir={name}"]
        for name, make in TABLES.items()
    }
    return folder, at_once(folder, commands)


def last(ran, name: str) -> str:
    """What a run says last, which its page and its summary say too."""
    folder, found = ran
    each, summary = found[name], read_summary(folder / name)
    assert each.code == 0, each
    said = summary["diagnosis"]["sentence"]
    assert said in each.out.splitlines(), "a sentence on a line of its own"
    assert set(summary["residuals"]) == {split for split, score in summary["metrics"].items() if score is not None}
    page = html.unescape((folder / name / "report.html").read_text())
    assert said.removeprefix(f"{summary['diagnosis']['kind']}: ") in page
    return said


def scores(ran, name: str) -> dict[str, float | None]:
    metrics = read_summary(ran[0] / name)["metrics"]
    return {split: score["r2"] for split, score in metrics.items() if score is not None}


def constants(ran, name: str) -> dict[str, float]:
    return read_summary(ran[0] / name)["constants"]


def test_a_german_table(ran):
    """The room follows a linear law, from which the noise of 0.05 in a spread of 2.2 hides it by 2 %."""
    said = last(ran, "german")
    assert said.startswith(("good: ", "noise-limited: ")) and min(scores(ran, "german").values()) > 0.99
    assert "train 72 rows" in ran[1]["german"].out
    assert "72 rows (71 scored) fitted" in (ran[0] / "german" / "report.html").read_text()


def test_a_driven_record_with_gaps(ran):
    """It explains 99 % of what was held out, and no simple model does."""
    said = last(ran, "gaps")
    assert min(scores(ran, "gaps").values()) > 0.99
    assert said.startswith("good: ") and "overfitted" not in said and "a linear state-space model, has" in said


def test_twelve_subjects_who_were_dosed(ran):
    """The constants are right to 2 %. Each trajectory starts at a noisy row, so that its residuals move together: the
    run says so, and advises to fit the starts."""
    said, out = last(ran, "doses"), ran[1]["doses"].out
    assert constants(ran, "doses") == pytest.approx({"ka": 1.4, "ke": 0.12, "V": 30.0}, rel=0.02)
    assert said.startswith("misfit: ") and "start=fitted" in said and "only more data" not in said
    assert "Neighbouring residuals depend on each other" in out and "start=fitted start.given=all" in out


def test_an_epidemic_whose_susceptible_nobody_counts(ran):
    """They start at a wrong number, so the fit is poor; that says nothing of constants, nor of more hidden states."""
    said, out = last(ran, "epidemic"), ran[1]["epidemic"].out
    assert scores(ran, "epidemic")["train"] < 0.5 and said.startswith(("flat: ", "poor: ", "beaten: "))
    assert "start=first start.absent" in said and "hidden=" not in said and "ridge" not in said
    assert "not determined" not in out and "do not describe the training data from this start" in out


def test_a_chaotic_record(ran):
    """What is simulated over many turns is lost after a few; it is no matter of the record's length."""
    said = last(ran, "chaos")
    assert scores(ran, "chaos")["train"] < 0.9 and said.startswith(
        ("flat: ", "poor: ", "beaten: ", "tied: ", "worsened: ")
    )
    assert "shorter windows" in said and "longer record" not in said


def test_eight_rows(ran):
    """The constant is right to 2 %; all rows are fitted, and there is no network to restrain."""
    said = last(ran, "few")
    assert set(scores(ran, "few")) == {"train"} and constants(ran, "few")["k"] == pytest.approx(0.7, rel=0.02)
    assert said.startswith("good: ") and "nan" not in said and "ridge" not in said
    assert "reaches" not in said, "nothing is held out that could leave the range"
