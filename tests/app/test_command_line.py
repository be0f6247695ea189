"""What people type: files without keys, values without quotes, keys with and without a plus, equations in a file."""

import re
import shlex
from pathlib import Path

import numpy as np
import optax
import pytest
from helpers.commands import node_fit, spirals, write_table
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from omegaconf import OmegaConf

from node_fit.__main__ import COMMANDS, FIT, SHOW
from node_fit.app.config.build import build
from node_fit.app.config.composition import ConfigError, explain
from node_fit.app.config.overrides import quoted_words
from node_fit.app.launching import complete, register, with_or_without_plus

CONF = Path(__file__).parents[2] / "conf"
FAST = ("field.width=8", "field.depth=1", "training.steps=3", "recipe=direct", "report=false")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rows = [{key: row[key] for key in ("t", "x", "y")} for row in spirals(trajectories=("A",))]
    write_table(tmp_path / "mine.csv", rows)
    write_table(tmp_path / "named.csv", spirals())
    (tmp_path / "lab.csv").write_text("Zeit [h];Temperatur [°C]\n0,5;20,1\n1,0;20,4\n")
    (tmp_path / "one.csv").write_text("t,x\n0,1\n")
    (tmp_path / "model.txt").write_text("# van der Pol\nx: y\n\ny: m*(1-x^2)*y - x  # stiff\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def composed(*words):
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"), with_or_without_plus():
        return compose("config", list(words))


# Files.


@pytest.mark.slow
@pytest.mark.parametrize("words", [["mine.csv"], ["--data", "mine.csv"], ["--data=mine.csv"]])
def test_a_file_is_fitted_without_a_key(folder, words):
    ran = node_fit(folder, *words, *FAST, "hydra.run.dir=run")
    assert ran.code == 0, ran.err
    line = ran.out.splitlines()[0]
    assert line.startswith(
        "mine.csv: column 't' is the time, 'x', 'y' are states; in full: python -m node_fit data=table"
    )
    same = shlex.split(line.partition("python -m node_fit ")[2])
    assert same[:4] == ["data=table", "data.path=mine.csv", "data.time=t", "data.states=[x,y]"]
    data = OmegaConf.load(folder / "run" / "config.yaml").data
    assert (data.path, data.time, data.states) == ("mine.csv", "t", ["x", "y"])
    assert data == composed(*same).data


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["named.csv", "data.trajectory=id"], ["data.time=t", "data.states=[x,y,u]"]),
        (["named.csv", "data.trajectory=id", "data.inputs=[u]"], ["data.time=t", "data.states=[x,y]"]),
        (["named.csv", "data.time=t", "data.trajectory=id"], ["data.states=[x,y,u]"]),
        (["mine.csv", "data.states=[x]"], ["data.time=t"]),
        (["mine.csv", "data.states=[t,x]"], ["data.time=y"]),
        (["mine.csv", "data.step=0.1"], ["data.states=[t,x,y]"]),
        (["mine.csv", "data=table"], ["data.time=t", "data.states=[x,y]"]),
        (
            ["lab.csv"],
            [
                'data.time="Zeit [h]"',
                "data.states=[Temperatur]",
                'data.rename={Temperatur:"Temperatur [°C]"}',
                'data.units={Temperatur:"°C"}',
            ],
        ),
        (["*.csv", "data.states=[x]"], ['data.time="Zeit [h]"']),
    ],
)
def test_roles_that_are_given_are_kept(folder, words, made):
    found = complete(words, "node_fit")
    assert found[0] == "data=table" and found.count("data=table") == 1
    assert [word for word in found[2:] if word not in words] == made
    assert composed(*found).data.states


@pytest.mark.parametrize(
    ("head", "words", "made", "said"),
    [
        ("x,t,y", [], ["data.time=t", "data.states=[x,y]"], "column 't' is the time"),
        ("id,TIME,x", [], ["data.time=TIME", "data.trajectory=id", "data.states=[x]"], "'id' names the trajectory"),
        ("ID,TIME,DV,AMT", [], ["data.time=TIME", "data.trajectory=ID", "data.states=[DV]"], "'AMT' is left out"),
        ("id,t,x", ["data.trajectory=id"], ["data.time=t", "data.states=[x]"], "'x' is a state"),
        ("id,t,x", ["data.states=[x]"], ["data.time=t", "data.trajectory=id"], "'id' names the trajectory"),
        ("id,t,x", ["data.states=[x]", "data.inputs=[id]"], ["data.time=t"], "column 't' is the time"),
        ("t,x,u,v", ["data.states=[x]"], ["data.time=t"], "'u', 'v' are left out: inputs, covariates, doses or events"),
        ("id,t,x", ["data.states=[y]", "data.series=[x]"], ["data.time=t"], "column 't' is the time"),
        ("row,t,x", ["data.states=[x]", "data.step=1"], [], "guess.csv"),
    ],
)
def test_columns_are_guessed_by_name_before_place(folder, capsys, head, words, made, said):
    rows = ["1,0,1,0", "1,1,2,0", "2,0,2,1", "2,1,3,1"]
    width = head.count(",") + 1
    (folder / "guess.csv").write_text("\n".join([head, *(",".join(row.split(",")[:width]) for row in rows)]))
    found = complete(["guess.csv", *words], "node_fit")
    assert [word for word in found[2:] if word not in words] == made
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("columns", "words", "made"),
    [
        ("A1,A2,A3,B1,B2,B3", [], ["data.states=[value]", "data.series=[A1,A2,A3,B1,B2,B3]"]),
        ("T 600,B02,B03,C02,C03,D02,D03", [], ["data.states=[value]", "data.series=[B02,B03,C02,C03,D02,D03]"]),
        (
            "A1,B1,C1,D1,E1,F1",
            ['+field.equations={OD: "r*OD"}'],
            ["data.states=[OD]", "data.series=[A1,B1,C1,D1,E1,F1]"],
        ),
        ("A1,A2,A3,B1,B2,B3", ["data.states=[A1,B1]"], []),
        (
            "T 600,A1,A2,A3,B1,B2,B3",
            ['data.inputs=["T 600"]'],
            ["data.states=[value]", "data.series=[A1,A2,A3,B1,B2,B3]"],
        ),
        ("A1,A2,A3,A4,A5,A6", [], ["data.states=[A1,A2,A3,A4,A5,A6]"]),
        ("A1,A2,B1,B2", [], ["data.states=[A1,A2,B1,B2]"]),
        ("x1,x2,x3,y1,y2,y3", [], ["data.states=[x1,x2,x3,y1,y2,y3]"]),
        ("Replicate_1,Replicate_2", [], ["data.states=[value]", "data.series=[Replicate_1,Replicate_2]"]),
        ("tablet_1,tablet_2", [], ["data.states=[value]", "data.series=[tablet_1,tablet_2]"]),
        ("mouse 1,mouse 2,mouse 3,T", [], ["data.states=[value]", 'data.series=["mouse 1","mouse 2","mouse 3"]']),
        ("OD_1,OD_2", ["data.series=[OD_*]"], ["data.states=[value]"]),
        ("OD_1,OD_2", ["data.series=[OD_*]", '+field.equations={OD: "r*OD"}'], ["data.states=[OD]"]),
        ("OD_1,OD_2", ["data.series=[OD_*]", "data.states=[OD]"], []),
        ("rep1,run1", [], ["data.states=[rep1,run1]"]),
        ("probe1,probe2", [], ["data.states=[probe1,probe2]"]),
        ("sample1,x", [], ["data.states=[sample1,x]"]),
        ("rep1,rep2", ["data.states=[rep1,rep2]"], []),
    ],
)
def test_wells_of_a_plate_are_trajectories_of_one_state(folder, capsys, columns, words, made):
    width = columns.count(",") + 1
    rows = [
        f"{hour},{','.join(f'{0.05 * hour**2 + 0.01 * (hour * k % 5):.3f}' for k in range(width))}" for hour in range(9)
    ]
    (folder / "plate.csv").write_text("\n".join([f"Time,{columns}", *rows]))
    found = complete(["plate.csv", *words], "node_fit")
    assert [word for word in found[3:] if word not in words] == made
    said = capsys.readouterr().out
    kind = "repeats of an experiment" if "e" in columns else "wells of a plate"
    assert (f"are {kind}, each a trajectory of the state" in said) is any("series" in word for word in made)
    assert ("'T 600' is left out" in said) is ("T 600" in columns and not words)


@pytest.mark.parametrize(
    ("dose", "words", "made"),
    [
        (lambda pot, hour: 200 + 50 * (pot % 2), [], ["data.states=[x]", "data.covariates=[dose]"]),
        (
            lambda pot, hour: 200 + 50 * (pot % 2) if hour == 0 else "",
            [],
            ["data.states=[x]", "data.covariates=[dose]"],
        ),
        (lambda pot, hour: 200 + 50 * (pot % 2) if hour == 3 else "", [], ["data.states=[dose,x]"]),
        (lambda pot, hour: 200 + pot * hour, [], ["data.states=[dose,x]"]),
        (lambda pot, hour: 200, [], ["data.states=[dose,x]"]),
        (lambda pot, hour: pot + 1, [], ["data.states=[dose,x]"]),
        (lambda pot, hour: 200 + 50 * (pot % 2), ["data.states=[dose]"], []),
        (lambda pot, hour: 200 + 50 * (pot % 2), ["data.inputs=[dose]"], ["data.states=[x]"]),
        (
            lambda pot, hour: 200 + 50 * (pot % 2),
            ['+field.equations={x: "-k*dose*x"}'],
            ["data.states=[x]", "data.inputs=[dose]"],
        ),
    ],
)
def test_what_is_constant_in_each_trajectory_is_a_covariate(folder, capsys, dose, words, made):
    rows = [f"{pot},{hour},{dose(pot, hour)},{20 + pot + hour**2}" for pot in range(4) for hour in range(5)]
    (folder / "doses.csv").write_text("\n".join(["pot,t,dose,x", *rows]))
    found = complete(["doses.csv", "data.trajectory=pot", *words], "node_fit")
    assert [word for word in found[2:] if word not in (*words, "data.time=t", "data.trajectory=pot")] == made
    said = "'dose' is a covariate, constant in each trajectory" in capsys.readouterr().out
    assert said is any("covariates" in word for word in made)


def test_a_column_of_records_with_blanks_is_none_where_states_are_named(folder):
    rows = [f"{hour},{'a' if hour % 4 else ''},{hour**2}" for hour in range(12)]
    (folder / "blanks.csv").write_text("\n".join(["t,id,x", *rows]))
    assert complete(["blanks.csv", "data.states=[x]"], "node_fit")[2:] == ["data.time=t", "data.states=[x]"]


def test_a_first_column_of_words_tells_trajectories_apart(folder, capsys):
    rows = [f"Topf {pot};{hour};{20 + pot + hour},5" for pot in range(3) for hour in range(4)]
    (folder / "pots.csv").write_text("\n".join(["topf;stunde;masse", *rows]))
    found = complete(["pots.csv"], "node_fit")
    assert found[2:] == ["data.time=stunde", "data.trajectory=topf", "data.states=[masse]"]
    assert "'stunde' is the time, 'topf' names the trajectory" in capsys.readouterr().out
    assert complete(["pots.csv", "data.trajectory=topf"], "node_fit")[2] == "data.time=stunde"


@pytest.mark.parametrize(
    ("equations", "words", "made"),
    [
        ('{temp: "k*(plate - temp)"}', [], ["data.states=[temp]", "data.inputs=[plate]"]),
        ('{temp: "-k*temp"}', [], ["data.states=[temp]"]),
        ('{temp: "k*(plate - temp)"}', ["+field.constants.plate=1"], ["data.states=[temp]"]),
        ('{temp: "k*(plate - temp)"}', ["random=[plate]"], ["data.states=[temp]"]),
        (
            '{heat: "k*plate - heat"}',
            ["observation.formulas={temp: heat/c}"],
            ["data.states=[temp]", "data.inputs=[plate]"],
        ),
        ('{other: "-k*other"}', [], ["data.states=[plate,temp,x]"]),
        ('{temp: "k*(plate - temp)"}', ["data.inputs=[x]"], ["data.states=[temp]"]),
    ],
)
def test_equations_say_which_columns_are_states_and_inputs(folder, equations, words, made):
    (folder / "probe.csv").write_text("t,plate,temp,x\n0,34,18,1\n1,34,20,2\n2,35,22,1\n")
    found = complete(["probe.csv", f"field.equations={equations}", *words], "node_fit")
    assert [word for word in found if word.startswith(("data.states", "data.inputs")) and word not in words] == made


@pytest.mark.parametrize("pump", ["Pump (V)", "Pump"])
def test_columns_with_blanks_and_units_get_names_for_equations(folder, pump):
    (folder / "tank.csv").write_text("t (s),Upper tank (cm),Pump (V)\n0,1,2\n1,2,3\n2,3,1\n")
    found = complete(["tank.csv", f'data.inputs=["{pump}"]', "data.bounds={Upper_tank: [0.0, null]}"], "node_fit")
    data = composed(*found).data
    assert (data.states, data.inputs) == (["Upper_tank"], ["Pump"])
    assert data.rename == {"Upper_tank": "Upper tank (cm)", "Pump": "Pump (V)"}
    assert data.units == {"Upper_tank": "cm", "Pump": "V"} and data.bounds == {"Upper_tank": [0, None]}
    read = build(OmegaConf.to_container(data, resolve=True), key="data").load().train
    assert (read.states, read.inputs, read.units["Pump"]) == (("Upper_tank",), ("Pump",), "V")


def test_names_that_the_command_gives_to_columns_are_kept(folder):
    found = complete(["lab.csv", "data.rename={T: 'Temperatur [°C]'}", "data.states=[T]"], "node_fit")
    assert composed(*found).data.rename == {"T": "Temperatur [°C]"}
    assert sum(word.startswith("data.rename") for word in found) == 1


def test_a_switch_is_an_input_unless_the_command_says_otherwise(folder, capsys):
    rows = [f"{row},{row // 10 % 2},{(row % 10) / 10}" for row in range(60)]
    (folder / "set.csv").write_text("\n".join(["t,heater,room", *rows]))
    data = composed(*complete(["set.csv"], "node_fit")).data
    assert (data.states, data.inputs) == (["room"], ["heater"])
    line = capsys.readouterr().out
    assert "'room' is a state, 'heater' is an input, since 'heater' stays at one of 2 levels; in full:" in line
    assert composed(*complete(["set.csv", "data.states=[heater,room]"], "node_fit")).data.inputs == []
    loads = np.repeat([2, 0, 1, 5, 0, 5, 1, 0, 2, 5], 6)
    (folder / "cell.csv").write_text("\n".join(["t,load,volts", *(f"{t},{u},{t % 7}" for t, u in enumerate(loads))]))
    assert composed(*complete(["cell.csv"], "node_fit")).data.inputs == ["load"]
    assert "since 'load' stays at one of 4 levels" in capsys.readouterr().out
    (folder / "set.csv").write_text("\n".join(["t (s),heater (on),room (C)", *rows]))
    data = composed(*complete(["set.csv", "data.time=t"], "node_fit")).data
    assert (data.states, data.inputs, data.rename["heater"]) == (["room"], ["heater"], "heater (on)")


@pytest.mark.parametrize("given", [[], ["data.time=Zeit"], ["data.time=Zeit", "data.states=[Druck]"]])
def test_columns_are_named_with_or_without_their_units(folder, given):
    (folder / "lab.csv").write_text("Zeit [min],Druck [bar]\n0,1\n1,2\n2,3\n")
    data = composed(*complete(["lab.csv", *given], "node_fit")).data
    assert (data.time, data.states, data.rename["Druck"]) == ("Zeit [min]", ["Druck"], "Druck [bar]")


def test_a_likely_input_is_named_in_the_first_line(folder, capsys):
    rows = [f"{row},{row // 10 % 3},{(row % 10) / 10}" for row in range(60)]
    (folder / "set.csv").write_text("\n".join(["t,heater,room", *rows]))
    complete(["set.csv"], "node_fit")
    assert (
        "; 'heater' stays at one of 3 levels, like an input: data.inputs=[heater]; in full:" in capsys.readouterr().out
    )
    draw, level, lower, lines = np.random.default_rng(0), 0.0, 0.0, ["t,heater,room,wall"]
    for row, heat in enumerate(draw.normal(size=80)):  # A wall that follows a room, which a heater moves.
        lines.append(f"{row},{heat},{level},{lower}")
        level, lower = level + 2 * heat - 0.1 * level, lower + 0.5 * (level - lower)
    (folder / "set.csv").write_text("\n".join(lines))
    complete(["set.csv", "data.inputs=[heater]"], "node_fit")
    assert "like an input" not in capsys.readouterr().out
    rows = [f"{row},{row // 10 % 3},{(row % 10) / 10},{row // 9 % 2}" for row in range(60)]
    (folder / "set.csv").write_text("\n".join(["t,heater,room,fan", *rows]))
    complete(["set.csv"], "node_fit")  # With the hint's key, the fan would be a state if it did not name it, too.
    assert "like an input: data.inputs=[fan,heater]" in capsys.readouterr().out


def test_inputs_that_act_late_are_moved_by_a_key(folder, capsys, monkeypatch):
    valves, level, lines = np.repeat(np.random.default_rng(0).uniform(0, 1, 20), 15), 0.0, ["t,valve (%),level"]
    for row, valve in enumerate(valves):
        lines.append(f"{row / 2},{valve:.3f},{level:.4f}")
        level += 0.2 * (valves[max(row - 6, 0)] - level)
    (folder / "pipe.csv").write_text("\n".join(lines))
    assert composed(*complete(["pipe.csv"], "node_fit")).data.delays == {"valve": 3.0}
    assert "responses to 'valve' begin 6 rows later; in full:" in capsys.readouterr().out
    assert composed(*complete(["pipe.csv", "data.inputs=[]"], "node_fit")).data.delays == {}
    given = composed(*complete(["pipe.csv", "data.delays={valve: 0.5}"], "node_fit")).data
    assert given.delays == {"valve": 0.5} and "later" not in capsys.readouterr().out
    monkeypatch.setattr("node_fit.app.recognition.MOST_BYTES_LOOKED_AT", 1000)  # a large file is not read twice
    assert composed(*complete(["pipe.csv"], "node_fit")).data.delays == {}


def test_clipped_sensors_get_their_range_by_a_key(folder, capsys):
    force, (x, v), lines = np.repeat(np.random.default_rng(3).uniform(-1, 1, 20), 20), (0.0, 0.0), ["t,force,x"]
    for row, u in enumerate(force):
        lines.append(f"{row / 20},{u:.4f},{min(x, 0.4):.5f}")
        for _ in range(10):
            v += 0.005 * (9 * u - 9 * x - 0.8 * v)
            x += 0.005 * v
    (folder / "spring.csv").write_text("\n".join(lines))
    assert composed(*complete(["spring.csv"], "node_fit")).data.ranges == {"x": [None, 0.4]}
    assert "'x' stays at 0.4 in" in capsys.readouterr().out
    for word in ("data.ranges={}", "data.censored=false", "loss=huber"):
        assert composed(*complete(["spring.csv", word], "node_fit")).data.ranges == {}
    given = composed(*complete(["spring.csv", "data.ranges={x: [null, 0.5]}"], "node_fit")).data
    assert given.ranges == {"x": [None, 0.5]}


def test_states_that_follow_the_clock_get_its_phase_by_a_key(folder, capsys):
    lines, y = ["when,room"], 0.0
    for hour in range(24 * 20):
        lines.append(f"2024-03-{4 + hour // 24:02} {hour % 24:02}:00,{y:.4f}")
        y += (6 <= hour % 24 < 22) - 0.25 * y
    (folder / "room.csv").write_text("\n".join(lines))
    data = composed(*complete(["room.csv"], "node_fit")).data
    assert data.cycles == ["day"] and data.inputs == []
    assert "'room' is a state, states follow the time of day; in full:" in capsys.readouterr().out
    later = composed(*complete(["room.csv", "data.split.test_from=2024-03-09"], "node_fit")).data
    assert later.cycles == []  # five days are too few, and the others are the test
    for word in ("data.cycles=[]", "field.equations={room: -k*room}"):
        words = [word, "field=known"] if "field" in word else [word]
        assert composed(*complete(["room.csv", *words], "node_fit")).data.cycles == []


@pytest.mark.parametrize("given", [[], ["data.states=[room]"], ["data.time=Datum"]])
def test_times_of_day_of_a_logger_name_no_records(folder, given):
    """Each of them comes once a day, with a later date every time, and so does each number of a count."""
    lines = ["Datum;Uhrzeit;room;count"]
    lines += [f"{3 + hour // 24:02}.03.2025;{hour % 24:02}:00;{hour % 7},5;{hour % 24}" for hour in range(24 * 6)]
    (folder / "log.csv").write_text("\n".join(lines))
    data = composed(*complete(["log.csv", *given], "node_fit")).data
    assert (data.time, data.time_of_day, data.trajectory) == ("Datum", "Uhrzeit", None)
    assert data.states[0] == "room"


def test_inputs_are_seen_beside_limits_of_detection(folder):
    levels, x, lines = np.repeat([0, 1, 0.3, 0.7, 0, 1, 0.7, 0, 0.3, 1, 0, 0.7], 20), 0.0, ["t,heater,room"]
    for row, level in enumerate(levels):
        x += 0.1 * (level - x)
        lines.append(f"{row},{level},{'>0.6' if x > 0.6 else f'{x:.4f}'}")
    (folder / "room.csv").write_text("\n".join(lines))
    data = composed(*complete(["room.csv"], "node_fit")).data
    assert data.inputs == ["heater"] and data.states == ["room"] and data.censored


def test_columns_named_by_a_condition_are_experiments_with_a_covariate(folder, capsys):
    (folder / "rates.csv").write_text("min,S0=0.5,S0=2,S0=8\n0,0,0,0\n1,0.2,0.5,0.8\n2,0.3,0.9,1.6\n")
    data = composed(*complete(["rates.csv"], "node_fit")).data
    assert (data.states, data.series, data.covariates) == (["value"], ["S0=0.5", "S0=2", "S0=8"], ["S0"])
    said = "'S0=0.5', 'S0=2', 'S0=8' are experiments at values of 'S0', each a trajectory of the state 'value'"
    assert said in capsys.readouterr().out
    assert composed(*complete(["rates.csv", "data.covariates=[]"], "node_fit")).data.covariates == []
    (folder / "rates.csv").write_text("min,S0=1,S0=1 (2),x\n0,0,0,0\n1,0.2,0.5,0.8\n2,0.3,0.9,1.6\n")
    assert not composed(*complete(["rates.csv"], "node_fit")).data.series


@pytest.mark.parametrize(
    ("header", "inputs"),
    [
        ("t,u,y", ["u"]),
        ("t_s,u_V,y_V", ["u_V"]),
        ("t,u1,u2,y1,y2", ["u1", "u2"]),
        ("t,Input (bar),Output (m)", ["Input"]),
        ("t,u,v,y", []),  # a reaction of three species
        ("t,u,x", []),
        ("t,uptake,yield", []),
    ],
)
def test_inputs_are_named_as_in_control_engineering(folder, capsys, header, inputs):
    rng, columns = np.random.default_rng(0), header.count(",")
    rows = [[row, *rng.normal(size=columns).round(3)] for row in range(8)]
    (folder / "log.csv").write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]))
    assert composed(*complete(["log.csv"], "node_fit")).data.inputs == inputs
    assert ("named as the input of" in capsys.readouterr().out) == bool(inputs)
    assert not composed(*complete(["log.csv", "data.inputs=[]"], "node_fit")).data.inputs


def test_a_reason_of_several_inputs_is_given_once(folder, capsys):
    rows = [f"{row},{row // 10 % 2},{row // 15 % 2},{(row % 10) / 10}" for row in range(60)]
    (folder / "rooms.csv").write_text("\n".join(["t,heater,fan,room", *rows]))
    complete(["rooms.csv"], "node_fit")
    assert "since each of 'heater', 'fan' stays at one of 2 levels; in full:" in capsys.readouterr().out


def test_inputs_by_the_responses_to_them_are_taken_with_their_reasons(folder, capsys):
    rng, level, lines = np.random.default_rng(0), 0.0, ["day,rain,flow,gate"]
    gates = np.repeat(rng.uniform(0, 1, 25), 8)
    for day, (rain, gate) in enumerate(zip(rng.gamma(0.7, 1.0, 200), gates, strict=True)):
        lines.append(f"{day},{rain:.3f},{level:.3f},{gate:.3f}")
        level += rain - (0.1 + 0.2 * gate) * level
    (folder / "river.csv").write_text("\n".join(lines))
    data = composed(*complete(["river.csv"], "node_fit")).data
    assert (data.states, data.inputs) == (["flow"], ["rain", "gate"])
    reasons = "since 'rain' drives 'flow' and is predicted by no column, and 'gate' jumps between values that it holds"
    assert f"'rain', 'gate' are inputs, {reasons}; in full:" in capsys.readouterr().out
    assert composed(*complete(["river.csv", "data.states=[flow,rain]"], "node_fit")).data.inputs == []


@pytest.mark.parametrize(
    ("words", "is_read"),
    [
        ([], True),
        (["data.time=t", "data.states=[c]"], True),
        (["loss=squares"], True),
        (["loss=student"], False),
        (["data.censored=false"], False),
        (["data.states=[d]"], False),
    ],
)
def test_limits_of_detection_are_read(folder, capsys, words, is_read):
    (folder / "assay.csv").write_text("t,c (mg/l),d,note\n0,9,1,a\n1,4.5,2,<2\n2,< 2,3,b\n")
    found = complete(["assay.csv", *words], "node_fit")
    assert ("data.censored=true" in found) == is_read
    assert ("'< 2' in 'c (mg/l)' is a limit of detection" in capsys.readouterr().out) == is_read


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "mine.csv", "data.states=[x]", "seed=0,1"],
        ["mine.csv", "-m", "data.states=[x]", "seed=0,1"],
        ["data.states=[x]", "-m", "mine.csv", "seed=0,1"],
        ["data.states=[x]", "--multirun", "seed=0,1", "mine.csv"],
    ],
)
def test_a_file_and_a_sweep_go_in_any_order(folder, words):
    """Hydra's parser reads overrides on one side of a flag only."""
    found = complete(words, "node_fit")
    read, unknown = get_args_parser().parse_known_args(found)
    assert read.multirun and not unknown
    assert set(read.overrides) == {"data=table", "data.path=mine.csv", "data.time=t", "data.states=[x]", "seed=0,1"}


def test_overrides_on_both_sides_of_a_flag_are_read(folder):
    found = complete(["seed=1", "-cn", "tune", "data=spiral"], "node_fit")
    read, unknown = get_args_parser().parse_known_args(found)
    assert read.overrides == ["seed=1", "data=spiral"] and read.config_name == "tune" and not unknown


@pytest.mark.parametrize("word", ["data=mine.csv", "data='mine.csv'", "data=folder/other.csv"])
def test_a_file_in_the_place_of_a_source_gets_what_to_type(folder, word):
    name = word.partition("=")[2].strip("'")
    with pytest.raises(ConfigError, match=re.escape(f"write the file alone: {name}.")):
        complete([word, "seed=1"], "node_fit")


def test_a_path_without_a_source_is_a_file(folder):
    assert complete(["data.path=mine.csv", "seed=1"], "node_fit") == complete(["mine.csv", "seed=1"], "node_fit")


@pytest.mark.parametrize(
    "words",
    [
        ["data.path=mine.csv", "data=spiral"],
        ["data.path=mine.csv", "experiment=cascaded_tanks"],
        ["data.path=mine.csv", "resume=run"],
        ["data.path=mine.csv", "-cn", "mine"],
        ["data.path=not_there.csv"],
    ],
)
def test_a_path_with_a_source_is_an_override(folder, words):
    assert complete(words, "node_fit") == words


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["p.yaml"], ["data=petab", "data.path=p.yaml"]),
        (["data.path=p.yml", "seed=1"], ["data=petab", "data.path=p.yml", "seed=1"]),
        (["p.yaml", "data=petab"], ["data=petab", "data.path=p.yaml"]),
        (["mine.csv", "m.xml"], ["data=sbml", "data.path=m.xml", "data.table=mine.csv"]),
        (["m.xml", "data.table=mine.csv"], ["data=sbml", "data.path=m.xml", "data.table=mine.csv"]),
    ],
)
def test_files_of_models_are_sources(folder, words, found):
    for name in ("p.yaml", "p.yml", "m.xml"):
        (folder / name).touch()
    assert complete(words, "node_fit") == found


def test_formulas_of_channels_are_an_observation(folder):
    short = complete(["mine.csv", "observation={x: A/V}"], "node_fit")
    assert short == complete(["mine.csv", "observation=formula", "observation.formulas={x: A/V}"], "node_fit")
    whole = "observation={_target_: node_fit.FormulaReadout, _partial_: true, formulas: {x: A}}"
    assert complete(["mine.csv", whole], "node_fit")[-1] == whole


def test_several_files_are_records(folder):
    found = complete(["--data", "mine.csv", "named.csv", "-m", "seed=0,1"], "node_fit")
    assert found[0] == "-m" and "data.path=[mine.csv,named.csv]" in found and found[-1] == "seed=0,1"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["mien.csv"], "mien.csv does not exist; did you mean mine.csv?"),
        (
            ["--data", "nowhere/mine.csv"],
            "nowhere/mine.csv does not exist, nor does the folder nowhere; check the path.",
        ),
        (["--data"], "--data names no file; write --data mine.csv."),
        (["mine.csv", "data=spiral"], "mine.csv and data=spiral both name data; leave one of them out."),
        (["mine.csv", "data.path=b.csv"], "mine.csv and data.path=b.csv both name data; leave one of them out."),
        (["p.yaml", "mine.csv"], "p.yaml and mine.csv both name data; leave one of them out."),
        (["mine.csv", "data.inputs=[x,y]"], "mine.csv has the columns 't', 'x', 'y'; it needs one of times and one of"),
    ],
)
def test_files_that_can_not_be_fitted_get_a_sentence(folder, words, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        complete(words, "node_fit")


def test_a_missing_file_leaves_no_folder(folder):
    ran = node_fit(folder, "mien.csv")
    assert ran.code == 1 and ran.sentence == "mien.csv does not exist; did you mean mine.csv?"
    assert not (folder / "outputs").exists()


def test_other_words_stay(folder):
    for words in (["--config-dir", "mine.csv", "seed=1"], ["seed"], ["-m", "~experiment"], ["-cn", "tune"]):
        assert complete(words, "node_fit") == words


def test_a_table_of_one_row_gets_a_sentence_about_rows(folder):
    ran = node_fit(folder, "one.csv")
    assert (
        ran.sentence == "the data have one row, and a fit needs rows that follow one another in a trajectory; add rows."
    )
    ran = node_fit(folder, "mine.csv", "data.trajectory=t", "data.time=x", "data.states=[y]")
    assert ran.sentence.startswith("each of the 15 trajectories has one row, and a fit needs rows")


# Quotes.


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("'data.states=[Temperatur [°C]]'", "'data.states=[\"Temperatur [°C]\"]'"),
        ("data.states=[Temperatur [°C]] seed=1", "'data.states=[\"Temperatur [°C]\"]'"),
        ("'data.states=[x, Temperatur [°C], y]'", "'data.states=[x,\"Temperatur [°C]\",y]'"),
        ("'data.time=Zeit [h]'", "'data.time=\"Zeit [h]\"'"),
        ("'+data.units={T: °C, t: h}'", "'+data.units={T: \"°C\", t: h}'"),
        (
            "'field.equations={x: exp(x), y: -a*maximum(x, y)}'",
            '\'field.equations={x: "exp(x)", y: "-a*maximum(x, y)"}\'',
        ),
    ],
)
def test_the_quotes_that_work_are_shown(typed, written):
    words = shlex.split(typed)
    assert quoted_words(words, words[0]) == written


@pytest.mark.parametrize("word", ["a=[1,", "seed", "=", "a=", "a={x: [}", "[x]", "a=[[x]"])
def test_quotes_are_not_offered_where_they_do_not_help(word):
    assert quoted_words([word], word) is None


def test_the_command_says_the_quotes_that_work(folder):
    given = ("data=table", "data.path=lab.csv", "data.time=t", "data.states=[Temperatur [°C]]")
    ran = node_fit(folder, *given)
    assert ran.sentence == f"{given[-1]} can't be read; write 'data.states=[\"Temperatur [°C]\"]'."


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("field.equations={x: -k*(x + y), y: sin(x)}", 'field.equations={x: "-k*(x + y)", y: "sin(x)"}'),
        ("+field.equations={x: 'a*(x)', y: b*(x)}", "+field.equations={x: 'a*(x)', y: \"b*(x)\"}"),
        ("field.equations={x: -k*x}", "field.equations={x: -k*x}"),
        ("field.equations={x: -k*(x}", "field.equations={x: -k*(x}"),
        ("field.equations={x: sin(x), b}", "field.equations={x: sin(x), b}"),
        ("data.bounds={x: [0, 1]}", "data.bounds={x: [0, 1]}"),
    ],
)
def test_formulas_need_no_quotes(word, read):
    assert complete([word], "node_fit") == [read]


# Keys with and without a plus.


@pytest.mark.parametrize(
    "word",
    [
        "field.constants.a=0.5", "field.constants={a: 0.5}", "data.bounds.x=[0,1]", "data.units.x=m", "seed=1",
        "data.noise=0.1", "data.scale=false", "training.steps=7", "data.split.by=time", "optimizer=adam",
        "solver.rtol=1e-4", "data.covariates={dose: {A: 1.0}}", "experiment=spiral",
    ],
)  # fmt: skip
def test_a_key_is_accepted_with_and_without_a_plus(word):
    first = ("data=spiral", "field=known", "field.equations={x: 1}")
    without, added = (composed(*first, *complete([each], "node_fit")) for each in (word, f"+{word}"))
    assert without == added != composed(*first)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["optimizer.clip=1"], "optimizer.clip is a key of optimizer=adam, optimizer=adamw alone; choose one of these"),
        (["field=known", "field.rest=true"], "field.rest is a key of field=hybrid alone; choose it, or leave it out."),
        (["data.bound.x=[0,1]"], "data.bound is not a config key; did you mean data.bounds?"),
        (["training.step=1"], "training.step is not a config key; did you mean training.steps?"),
        (["seed.x=1"], "seed.x is not a config key; seed holds a value, not keys."),
        (["field.width.x=1"], "field.width.x is not a config key; field.width holds a value, not keys."),
        (["sead=1"], "sead is not a config key; did you mean seed?"),
        (["population.random=[k]"], "population.random is not a config key; did you mean random?"),
    ],
)
def test_a_key_that_can_not_be_gets_a_sentence(words, sentence):
    with pytest.raises(Exception) as caught:
        composed(*words)
    assert (explain(caught.value) or "").startswith(sentence)


def test_an_option_with_a_plus_that_lacks_the_key_gets_the_same_sentence(folder):
    ran = node_fit(folder, "mine.csv", "+optimizer.clip=1", *FAST)
    assert ran.sentence.startswith("optimizer.clip is a key of optimizer=adam, optimizer=adamw alone")


def test_every_table_that_ships_has_all_keys_of_a_table():
    keys = list(composed("data=table").data)
    for path in (CONF / "data").glob("*.yaml"):
        data = composed(f"data={path.stem}").data
        if data._target_ != "node_fit.Table":
            continue
        assert list(data) == keys, path
        text = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        assert path.stem == "table" or "noise" not in str(text), "what does not differ is not repeated"
    events = "data.events=[{time: 1, state: x, add: 1}]"
    assert composed("data=spiral", events).data.events[0].state == "x"
    assert composed("data.split.validation_from=1912").data.split.test_from == 1915


# Equations.


@pytest.mark.long
@pytest.mark.slow
def test_equations_of_a_file_are_stored_with_the_run(folder):
    known = ("field=known", "field.equations=model.txt", "field.constants.m=0.1", "training.steps=2", "recipe=direct")
    ran = node_fit(folder, "mine.csv", *known, "report=false", "hydra.run.dir=run")
    assert ran.code == 0, ran.err
    equations = OmegaConf.load(folder / "run" / "config.yaml").field.equations
    assert equations == {"x": "y", "y": "m*(1-x^2)*y - x"}
    (folder / "model.txt").unlink()
    ran = node_fit(folder, "resume=run", "training.steps=4")
    assert ran.code == 0, ran.err
    ran = node_fit(folder, "run", "--data", "mine.csv", "--out", "out.csv", module="node_fit.predict")
    assert ran.code == 0, ran.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["field.equations={x: 'y + np.exp(x)', y: x}"],
            "field: equation of 'x': write exp(x) for np.exp (column 5 of",
        ),
        (["field.equations={x: 'y', y: 'x - b'}"], "field: equation of 'y': 'b' is not a state, an input, a constant"),
        (["field.equations=model.txt"], "field: model.txt, line 4: equation of 'y': 'm' is not a state, an input"),
        (["field.equations=modell.txt"], "field.equations: modell.txt does not exist; did you mean model.txt?"),
        (["field=hybrid", "field.equations=mine.csv"], "mine.csv, line 1: write a state and its equation, such as"),
    ],
)
def test_a_fault_in_equations_is_told_before_a_folder_is_made(folder, words, sentence):
    ran = node_fit(folder, "mine.csv", "field=known", *words)
    assert ran.code == 1 and ran.sentence.startswith(sentence)
    assert not (folder / "outputs").exists()


def test_a_zero_of_a_logarithmic_state_is_told_before_the_fit(folder):
    """It is in the test data, which the fit does not see."""
    rows = "\n".join(f"{t},{max(8 - t, 0)}" for t in range(12))
    (folder / "dilution.csv").write_text(f"t,c\n{rows}\n")
    ran = node_fit(folder, "dilution.csv", "data.time=t", "data.states=[c]", "data.log=[c]", *FAST)
    assert ran.code == 1
    assert "state 'c' is 0 at t = 8 of trajectory" in ran.sentence
    assert "compiling" not in ran.out


# Commands and their help.


@pytest.mark.parametrize("name", ["predict", "discover", "export", "report", "open"])
def test_commands_are_words_after_node_fit(folder, name):
    ran = node_fit(folder, name, "--help")
    assert ran.code == 0 and "usage: " in ran.out and name in ran.out


def test_fit_is_a_word_that_can_be_left_out(folder):
    with_word, without = (node_fit(folder, *word, "--cfg", "job", "seed=7") for word in ([FIT], []))
    assert with_word.code == 0 and with_word.out == without.out and "seed: 7" in without.out


def test_a_folder_of_tables_is_data_and_a_run_is_not(folder, capsys):
    (folder / "runs").mkdir()
    for name in ("a.csv", "b.csv"):
        (folder / "runs" / name).write_text("t,x\n0,1\n1,2\n")
    for words in (["runs"], ["data.path=runs"]):
        assert complete(words, "node_fit")[1:] == ["data.path=runs", "data.time=t", "data.states=[x]"]
    (folder / "table").mkdir()
    assert complete(["data=table", "data.path=runs/a.csv"], "node_fit")[0] == "data=table", (
        "a kind of source, no folder"
    )
    (folder / "runs" / ".run.json").touch()
    with pytest.raises(
        ConfigError, match=r"runs is the folder of a run; name a table, or see it by node-fit open runs"
    ):
        complete(["runs"], "node_fit")


@pytest.mark.parametrize(
    "word, hint", [("dicover", "did you mean discover?"), ("lynx", "the commands are analysis, app")]
)
def test_a_misspelled_command_is_no_override_with_brackets(folder, word, hint):
    ran = node_fit(folder, word, "seed=7")
    assert ran.code == 1 and ran.sentence.startswith(f"{word} is neither a command of node-fit nor a file; {hint}")


def test_the_help_begins_with_what_people_type(folder):
    """Before the groups and all keys of Hydra."""
    ran = node_fit(folder, "--help")
    before = ran.out.partition("== Configuration groups ==")[0]
    assert {FIT, *COMMANDS, SHOW, "COMMAND"} == set(re.findall(r"^node-fit (\S+)", before, re.MULTILINE)), ran
    keys = re.findall(r"^  '?\+?([a-z_.]+)=", before, re.MULTILINE)
    assert len(keys) >= 9 and "data.time" in keys and "effort" in keys


@pytest.mark.parametrize("word", ["optimizer=optax.nadam", "optimizer=optax.adabelief"])
def test_an_optimizer_of_optax_gets_what_to_type(folder, word):
    ran = node_fit(folder, word)
    written = ran.sentence.partition("is written ")[2].rstrip(".")
    assert shlex.split(written)[0] == "~optimizer"
    chosen = composed(*shlex.split(written)).optimizer
    made = build(chosen, "optimizer")
    assert chosen._target_ == word.partition("=")[2] and isinstance(made, optax.GradientTransformation)


def test_a_constant_without_a_value_gets_its_key(folder):
    ran = node_fit(folder, "field=known", '+field.equations={hare: "mu*hare", lynx: "-lynx"}')
    assert ran.sentence.endswith("if it is a constant, give its first value, +field.constants.mu=1.")
    near = node_fit(folder, "field=known", '+field.equations={hare: "linx", lynx: "-lynx"}')
    assert near.sentence.endswith("did you mean 'lynx'?")
