"""Numbers, YAML and paths in files of strangers."""

import time

import pytest
import yaml

import node_fit as nf
from node_fit.app.config.build import check_value
from node_fit.app.config.composition import ConfigError, read_config
from node_fit.data.tables.text import reads_as_number
from node_fit.model.fields.equations import read_equation_lines
from node_fit.report.pages import read_overrides
from node_fit.report.run_files import read_config_text
from node_fit.runtime.serialization import check_yaml, parse_number, parse_plain_yaml
from node_fit.runtime.validation import check_path


def test_a_number_has_no_underscore():
    assert [parse_number(text) for text in ("1e-3", " -2 ", "inf")] == [1e-3, -2.0, float("inf")]
    with pytest.raises(ValueError, match="'0_5' is not a number"):
        parse_number("0_5")
    assert reads_as_number("0,5") and not reads_as_number("0_5")
    with pytest.raises(ConfigError, match="must be a number, got '0_5'"):
        check_value("0_5", float, "evaluation.level")


ENDLESS = {
    "a: &a [x]\nb: *a": "line 2 has an alias",
    "- " * 1000: "line 1 is nested over 50 deep",
    "a: 1" + ":59" * 10_000: "line 1 has a value of over 10,000 characters",
    "a: " + "9" * 100_000: "line 1 has a value of over 10,000 characters",
}


@pytest.mark.parametrize("text", ENDLESS)
def test_yaml_that_takes_long_to_read_is_refused_by_all_readers(text, tmp_path):
    (tmp_path / ".hydra").mkdir()
    for name in ("config.yaml", ".hydra/overrides.yaml"):
        (tmp_path / name).write_text(text)
    began = time.perf_counter()
    for read in (check_yaml, parse_plain_yaml):
        with pytest.raises(ValueError, match=ENDLESS[text]):
            read(text)
    with pytest.raises(ConfigError, match=ENDLESS[text]):
        read_config(tmp_path / "config.yaml")
    assert read_config_text(tmp_path / "config.yaml") == ({}, "") and read_overrides(tmp_path) == []
    assert time.perf_counter() - began < 1


def test_plain_yaml_is_text_without_repeated_keys():
    text = "version: 1.10\nday: 2024-99-99\nfiles: [a, {b: c}]\nnone:\n"
    assert parse_plain_yaml(text) == {"version": "1.10", "day": "2024-99-99", "files": ["a", {"b": "c"}], "none": ""}
    with pytest.raises(ValueError, match="line 3 repeats the key 'a'; remove one"):
        parse_plain_yaml("a: 1\nb: 2\na: 3\n")
    with pytest.raises(yaml.YAMLError):
        parse_plain_yaml("a: [1")


@pytest.mark.parametrize("name", ["n" * 5000, "folder/" * 1000, "a\0b"])
def test_a_path_that_no_system_takes_is_refused_by_all_readers(name, tmp_path):
    check_path(tmp_path / ("n" * 255))
    table = {"time": "t", "states": ["x"]}
    for read in (check_path, nf.load, read_equation_lines, lambda path: nf.read_table(path, **table)):
        with pytest.raises(ValueError, match=r"a name in it has at most 255 bytes|holds a NUL byte") as caught:
            read(str(tmp_path / name))
        assert len(str(caught.value)) < 300
