"""A population from the command line: a table of doses is recognised, fitted, written and predicted from."""

import json

import numpy as np
import pytest
from helpers.commands import node_fit as run

pytestmark = pytest.mark.slow
EQUATIONS = "field.equations={gut: -ka*gut, c: ka*gut/v - ke*c}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Ten subjects with a dose each, in NONMEM's columns."""
    path = tmp_path_factory.mktemp("population")
    rng, lines = np.random.default_rng(5), ["ID,TIME,DV,AMT,EVID,CMT"]
    for subject in range(1, 11):
        ka, ke, v = 1.2, 0.2 * np.exp(0.3 * rng.standard_normal()), 20 * np.exp(0.2 * rng.standard_normal())
        lines.append(f"{subject},0,.,100,1,1")
        for time in (0.5, 1.0, 2.0, 4.0, 8.0):
            c = 100 * ka / (v * (ka - ke)) * (np.exp(-ke * time) - np.exp(-ka * time)) + 0.05 * rng.standard_normal()
            lines.append(f"{subject},{time},{c:.4f},0,0,2")
    (path / "mine.csv").write_text("\n".join(lines) + "\n")
    (path / "new.csv").write_text(
        "ID,TIME,DV,AMT,EVID,CMT\n1,0,.,100,1,1\n1,3,.,0,0,2\nnew,0,.,100,1,1\nnew,3,.,0,0,2\n"
    )
    return path


@pytest.mark.long
def test_run_is_fitted_written_and_predicted_from(folder):
    words = ("mine.csv", "field=known", EQUATIONS, "random=[ke,v]", "+field.constants={ka: 1.0, ke: 0.1, v: 10.0}")
    ran = run(folder, *words, "hydra.run.dir=run")
    assert ran.code == 0, ran.err
    (answer,) = [
        line for line in ran.out.splitlines() if line.startswith("first answer: the equations have an NRMSE of 0.")
    ]
    assert " on train data (ka = " in answer and "ke = 0." in answer
    assert "CMT 1 is gut, 2 is c; DV measures 'c'" in ran.out and "condition number" in ran.out
    summary = json.loads((folder / "run" / "summary.json").read_text())
    population = summary["population"]
    assert summary["status"] == "converged" and population["method"] == "focei"
    assert population["fixed"]["ke"] == pytest.approx(0.2, rel=0.25)
    assert set(population["variances"]) == {"ke", "v"} and population["noise"]["c"]["additive"] < 0.08
    for name in ("individuals.csv", "subjects.csv", "predictions.csv", "report.html", "plots/predictive_check.png"):
        assert (folder / "run" / name).stat().st_size > 100
    ran = run(folder, "run", "--data", "new.csv", "--out", "out.csv", module="node_fit.predict")
    assert ran.code == 0, ran.err
    assert "1 subject by their mode in the fit, 1 subject as drawn from the population" in ran.out
    assert (folder / "out.csv").read_text().count("\n") == 5


def write_visits(path) -> None:
    """Three visits of each of ten subjects, whose elimination differs between visits, too."""
    rng, lines = np.random.default_rng(7), ["ID,OCC,TIME,DV,AMT,EVID,CMT"]
    for subject in range(1, 11):
        own, v = 0.3 * rng.standard_normal(), 20 * np.exp(0.2 * rng.standard_normal())
        for visit in (1, 2, 3):
            ka, ke, begin = 1.2, 0.2 * np.exp(own + 0.2 * rng.standard_normal()), 168 * (visit - 1)
            lines.append(f"{subject},{visit},{begin},.,100,1,1")
            for time in (0.5, 1.0, 2.0, 4.0, 8.0):
                c = (
                    100 * ka / (v * (ka - ke)) * (np.exp(-ke * time) - np.exp(-ka * time))
                    + 0.05 * rng.standard_normal()
                )
                lines.append(f"{subject},{visit},{begin + time},{c:.4f},0,0,2")
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.long
def test_visits_are_records_of_their_subject(folder):
    """Without effects of visits, the noise takes what differs between them."""
    write_visits(folder / "visits.csv")
    words = ("visits.csv", "field=known", EQUATIONS, "random=[ke,v]", "+field.constants={ka: 1.0}")
    ran = run(folder, *words, "data.occasion=OCC", "population.occasions=[ke]", "hydra.run.dir=visits")
    assert ran.code == 0, ran.err
    assert "10 subjects, 30 records, 150 measurements" in ran.out and "occasion variance of ke" in ran.out
    population = json.loads((folder / "visits" / "summary.json").read_text())["population"]
    assert population["subjects"] == 10 and population["noise"]["c"]["additive"] == pytest.approx(0.05, rel=0.2)
    assert 0.015 < population["occasions"]["variances"]["ke"] < 0.09
    assert (folder / "visits" / "individuals.csv").read_text().count("\n") == 31
    ran = run(folder, *words, "data.occasion=OCC", "hydra.run.dir=alike")
    assert ran.code == 0 and "10 subjects, 30 records" in ran.out
    alike = json.loads((folder / "alike" / "summary.json").read_text())["population"]
    assert alike["noise"]["c"]["additive"] > 2 * population["noise"]["c"]["additive"]
    ran = run(folder, *words, "population.evaluate=true", "hydra.run.dir=left")
    assert "data.occasion=OCC makes each occasion of a subject a record of its own" in ran.out
    ran = run(folder, "visits", "--data", "visits.csv", "--out", "visits_out.csv", module="node_fit.predict")
    assert ran.code == 0 and "30 records by their mode given these measurements" in ran.out, ran


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("random=[ke]", "population.occasions=[v]"), "occasions names 'v', which does not differ between subjects"),
        (("random=[ke]", "population.occasions=[ke]"), "name the column that tells them apart, data.occasion=OCC"),
        (("random=[ke]", "data.occasion=VISIT"), "mine.csv has no column 'VISIT' of occasions"),
        (("random=[q]",), "random names 'q'"),
        (("random=[ke]", "population.noise=gamma"), "must be one of"),
        (("random=[ke]", "resume=auto"), "leave resume out"),
        (("random=[ke]", "plot=[11]"), "there is no trajectory '11' to plot"),
    ],
)
def test_what_is_wrong_is_a_sentence(folder, words, said):
    given = ("field=known", EQUATIONS, "+field.constants={ka: 1.0, ke: 0.2, v: 20.0}")
    ran = run(folder, "mine.csv", *given, *words, "hydra.run.dir=wrong")
    assert ran.code == 1 and said in ran.sentence


@pytest.mark.long
def test_limits_are_read_and_fitted(folder):
    """By the column CENS, or by signs where data.censored allows them."""
    lines = (folder / "mine.csv").read_text().splitlines()
    cells = [line.split(",") for line in lines[1:]]
    is_low = [row[3] == "0" and float(row[2]) < 2.0 for row in cells]
    assert 0.1 < np.mean(is_low) < 0.5
    marked = [
        ",".join([*row[:2], "2.0" if low else row[2], *row[3:], str(int(low))])
        for row, low in zip(cells, is_low, strict=True)
    ]
    signed = [",".join([*row[:2], "<2.0" if low else row[2], *row[3:]]) for row, low in zip(cells, is_low, strict=True)]
    (folder / "marked.csv").write_text("\n".join([lines[0] + ",CENS", *marked, ""]))
    (folder / "signed.csv").write_text("\n".join([lines[0], *signed, ""]))
    given = ("field=known", EQUATIONS, "random=[ke,v]", "+field.constants={ka: 1.0, ke: 0.1, v: 10.0}")
    objectives = []
    for file, words in (("marked.csv", ()), ("signed.csv", ("data.censored=true",))):
        ran = run(folder, file, *given, *words, f"hydra.run.dir=limits_{file}")
        assert ran.code == 0, ran.err
        assert f"({sum(is_low)} beyond a limit)" in ran.out
        summary = json.loads((folder / f"limits_{file}" / "summary.json").read_text())
        objectives.append(summary["population"]["objective"])
        nll = (objectives[-1] + (len(is_low) - 10 - sum(is_low)) * np.log(2 * np.pi)) / 2
        assert summary["likelihood"]["nll"] == pytest.approx(nll)
    assert objectives[0] == pytest.approx(objectives[1], abs=1e-6)
    ran = run(folder, "signed.csv", *given, "hydra.run.dir=unsaid")
    assert ran.code == 1 and "data.censored=true" in ran.sentence
