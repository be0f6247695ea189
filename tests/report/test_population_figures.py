"""What the page of a run shows of a population, also where a stranger's files hold something else."""

import base64
import json

import pytest

from node_fit.report.pages import make_run_page
from node_fit.report.population_figures import LARGEST_PICTURE, PNG, describe_population

POPULATION = {
    "objective": -12.5,
    "variances": {"ke": 0.12, "v": 0.02, "ke,v": 0.01},
    "standard_errors": {"variances": {"ke": 0.04, "v": None}, "noise": {"c": {"additive": 0.002}}},
    "shrinkage": {"ke": 0.03, "v": -0.02},
    "occasions": {"variances": {"ke": 0.04}},
    "noise": {"c": {"additive": 0.05}},
    "condition_number": 1.3,
    "weights": 13,
}


def test_effects_noise_and_pictures_are_described(tmp_path):
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "predictive_check_c.png").write_bytes(PNG + b"picture")
    (tmp_path / "plots" / "observed.png").write_bytes(b"<svg onload=alert(1)>")
    found = describe_population({"population": POPULATION}, tmp_path)
    assert found["effects"][0] == {"name": "ke", "variance": 0.12, "error": 0.04, "shrinkage": 0.03, "occasion": 0.04}
    assert [each["name"] for each in found["effects"]] == ["ke", "v", "ke,v"] and found["has_occasions"]
    assert found["noise"] == [{"name": "c additive", "value": 0.05, "error": 0.002}]
    (picture,) = found["pictures"]
    assert picture["title"].endswith("have them, c") and base64.b64decode(picture["png"]) == PNG + b"picture"


def test_large_files_and_links_are_no_pictures(tmp_path):
    (tmp_path / "plots").mkdir()
    (tmp_path / "secret.png").write_bytes(PNG)
    (tmp_path / "plots" / "observed.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "plots" / "predictive_check.png").write_bytes(PNG + bytes(LARGEST_PICTURE))
    assert describe_population({"population": POPULATION}, tmp_path)["pictures"] == []


@pytest.mark.parametrize(
    "wrong", [None, 7, [], "x", {"variances": [1]}, {"noise": {"c": 3}, "standard_errors": {"noise": 1}}]
)
def test_other_content_makes_a_page_too(tmp_path, wrong):
    (tmp_path / "summary.json").write_text(json.dumps({"status": "converged", "population": wrong}))
    assert "<h2>The run" in make_run_page(tmp_path).read_text()


def test_the_page_has_a_table_of_effects(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps({"status": "converged", "population": POPULATION}))
    text = make_run_page(tmp_path).read_text()
    assert "<h2>Population</h2>" in text and "between occasions" in text and "a network of 13 weights" in text
    assert "<code>c additive</code>" in text
