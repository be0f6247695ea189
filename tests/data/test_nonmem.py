"""Tables of doses and measurements: which rows are doses, where they go, what is measured, and what is refused."""

import numpy as np
import pytest

import node_fit
from node_fit.data.nonmem import STEADY_DOSES, guess_measured, infused_states, is_dosing_table


def read(tmp_path, text, **given):
    path = tmp_path / "table.csv"
    path.write_text(text)
    words = {"time": "TIME", "trajectory": "ID", "states": ["c"], "compartments": ["gut", "c"]} | given
    return node_fit.NONMEM(path=str(path), **words).read(str(path))


def doses_of(data, state, trajectory=0):
    at = data.events.states.index(state)
    rows = np.flatnonzero(data.events.shift[trajectory, :, at])
    return [(data.ts[trajectory, row], data.events.shift[trajectory, row, at]) for row in rows]


def test_doses_and_measurements_are_told_apart(tmp_path):
    text = "ID,TIME,DV,AMT,EVID,CMT\n1,0,.,100,1,1\n1,1,5.0,0,0,2\n1,2,4.0,.,0,2\n2,0,0,50,1,1\n2,3,2.5,0,0,2\n"
    data = read(tmp_path, text)
    assert data.trajectories == ("1", "2")
    assert doses_of(data, "gut") == [(0.0, 100.0)] and doses_of(data, "gut", 1) == [(0.0, 50.0)]
    np.testing.assert_array_equal(data.ys[0, :3, 0], [np.nan, 5.0, 4.0])
    assert np.isnan(data.ys[1, 0, 0])


def test_occasions_have_their_own_doses(tmp_path):
    """Each begins at its first row, wherever that is in time."""
    text = (
        "ID,OCC,TIME,DV,AMT,EVID,CMT\n1,1,0,.,100,1,1\n1,1,1,5.0,0,0,2\n1,2,48,.,50,1,1\n1,2,49,2.5,0,0,2\n"
        "2,1.0,0,.,10,1,1\n2,1.0,3,2.0,0,0,2\n"
    )
    data = read(tmp_path, text, occasion="OCC")
    assert data.trajectories == ("1/1", "1/2", "2/1")
    assert [doses_of(data, "gut", at) for at in range(3)] == [[(0.0, 100.0)], [(48.0, 50.0)], [(0.0, 10.0)]]
    np.testing.assert_array_equal(data.ts[:, 1], [1.0, 49.0, 3.0])
    with pytest.raises(ValueError, match=r"no column 'VISIT' of occasions; its columns are 'ID', 'OCC'"):
        read(tmp_path, text, occasion="VISIT")


def test_amount_is_a_dose_where_there_is_no_code(tmp_path):
    data = read(tmp_path, "id,time,dv,amt\n1,0,.,10\n1,1,2.0,.\n1,2,1.0,0\n")
    assert doses_of(data, "gut") == [(0.0, 10.0)]


def test_missing_values_flag_and_other_rows_are_no_measurements(tmp_path):
    data = read(
        tmp_path, "ID,TIME,DV,AMT,EVID,MDV\n1,0,9,10,101,1\n1,1,2.0,0,0,0\n1,2,7.0,0,0,1\n1,3,8.0,0,2,0\n1,4,1,0,0,0\n"
    )
    np.testing.assert_array_equal(np.isfinite(data.ys[0, :, 0]), [False, True, False, False, True])


def test_resets_empty_all_states(tmp_path):
    data = read(tmp_path, "ID,TIME,DV,AMT,EVID,CMT\n1,0,.,10,1,1\n1,1,2,0,0,2\n1,5,.,20,4,1\n1,6,3,0,0,2\n")
    row = int(np.flatnonzero(data.ts[0] == 5.0)[0])
    gut, c = (data.events.states.index(name) for name in ("gut", "c"))
    assert data.events.factor[0, row, gut] == data.events.factor[0, row, c] == 0
    assert data.events.shift[0, row, gut] == 20


def test_additional_and_steady_doses(tmp_path):
    text = "ID,TIME,DV,AMT,EVID,CMT,ADDL,II,SS\n1,0,.,10,1,1,2,4,0\n1,1,2,0,0,2,.,.,.\n1,20,1,0,0,2,.,.,.\n"
    assert [time for time, _ in doses_of(read(tmp_path, text), "gut")] == [0.0, 4.0, 8.0]
    steady = read(tmp_path, text.replace("2,4,0", "0,4,1"))
    times = [time for time, _ in doses_of(steady, "gut")]
    assert len(times) == STEADY_DOSES + 1 and times[-2:] == [-4.0, 0.0]


def test_infusions_are_rates_of_an_input(tmp_path):
    text = "ID,TIME,DV,AMT,EVID,CMT,RATE\n1,0,.,10,1,2,5\n1,1,2,0,0,2,.\n1,4,1,0,0,2,.\n"
    data = read(tmp_path, text, inputs=["infusion_c"])
    rates = dict(zip(data.ts[0].tolist(), data.us[0, :, 0].tolist(), strict=True))
    assert rates == {0.0: 5.0, 1.0: 5.0, 2.0: 0.0, 4.0: 0.0}
    with pytest.raises(ValueError, match=r"infusion_c.* data.inputs"):
        read(tmp_path, text)
    assert infused_states(tmp_path / "table.csv", ["gut", "c"]) == ["c"]


def test_measurement_after_a_dose_into_its_state_sees_it(tmp_path):
    data = read(tmp_path, "ID,TIME,DV,AMT,EVID,CMT\n1,0,.,10,1,2\n1,0,9.8,0,0,2\n1,1,5,0,0,2\n")
    assert 0 < data.ts[0, 1] < 1e-6 and data.ys[0, 1, 0] == 9.8 and np.isnan(data.ys[0, 0, 0])


def test_second_value_of_a_time_is_kept(tmp_path):
    data = read(tmp_path, "ID,TIME,DV,EVID,AMT\n1,0,.,1,10\n1,1,2,0,0\n1,1,3,0,0\n1,2,1,0,0\n")
    np.testing.assert_allclose(data.ts[0], [0, 1, 1, 2], atol=1e-6)
    np.testing.assert_array_equal(data.ys[0, 1:, 0], [2, 3, 1])


def test_dvid_names_what_is_measured(tmp_path):
    text = "id,time,amt,dv,dvid,evid,wt\n1,0,100,0,cp,1,60\n1,1,0,2,cp,0,60\n1,1,0,80,pca,0,60\n1,2,0,1,cp,0,60\n"
    data = read(tmp_path, text, time="time", states=["cp", "pca"], compartments=["gut", "cp", "pca"], covariates=["wt"])
    np.testing.assert_array_equal(data.ys[0, 1], [2.0, 80.0])
    assert data.inputs == ("wt",) and (data.us == 60).all()
    alone = read(tmp_path, text, states=["cp"], compartments=["gut", "cp"])
    assert np.isfinite(alone.ys).sum() == 2
    assert guess_measured(tmp_path / "table.csv", ["gut", "cp", "pca"]) == ["cp", "pca"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ID,TIME,DV,EVID,AMT,CMT\n1,0,.,1,10,3\n1,1,2,0,0,2\n", "line 2 has CMT '3'.*1 gut, 2 c"),
        ("ID,TIME,DV,EVID,AMT\n1,0,.,7,10\n1,1,2,0,0\n", "line 2 has EVID 7"),
        ("ID,TIME,DV,EVID,AMT,RATE\n1,0,.,1,10,-2\n1,1,2,0,0,0\n", "RATE -2"),
        ("ID,TIME,DV,EVID,AMT,ADDL\n1,0,.,1,10,3\n1,1,2,0,0,0\n", "without II"),
        ("ID,TIME,DV,EVID,AMT\n1,0,.,1,ten\n1,1,2,0,0\n", "line 2, column AMT: 'ten'"),
        ("ID,TIME,DV,EVID,AMT,CENS\n1,0,.,1,10,0\n1,1,2,0,0,2\n", "line 3 has CENS '2'"),
        ("ID,TIME,DV,EVID,AMT,CENS,LIMIT\n1,0,.,1,10,0,.\n1,1,2,0,0,1,low\n", "line 3, column LIMIT: 'low'"),
        ("ID,TIME,DV,EVID,AMT,CENS,LIMIT\n1,0,.,1,10,0,.\n1,1,2,0,0,1,3\n", "line 3 has LIMIT 3 and DV 2.*lower end"),
        ("ID,TIME,DV,EVID,AMT,CENS,LIMIT\n1,0,.,1,10,0,.\n1,1,2,0,0,-1,1\n", "line 3 has LIMIT 1 and DV 2.*upper end"),
        ("ID,TIME,DV,EVID,AMT,LIMIT\n1,0,.,1,10,.\n1,1,2,0,0,1\n", "line 3 has LIMIT, and the table has no CENS"),
        (
            "ID,TIME,DV,EVID,AMT\n1,0,.,1,10\n1,1,1..2,0,0\n",
            "line 3, column DV.*=true if it is an interval",
        ),
        ("ID,TIME,DV,EVID,AMT\n1,0,.,1,10\n1,1,<2,0,0\n", "line 3, column DV.*data.censored=true"),
        ("ID,TIME,DV,EVID,AMT\n1,,.,1,10\n1,1,2,0,0\n", "line 2 has no TIME"),
    ],
)
def test_faults_are_said_with_their_line(tmp_path, text, said):
    with pytest.raises(ValueError, match=said):
        read(tmp_path, text)


@pytest.mark.parametrize("given", [{}, {"censored": True}])
def test_values_between_limits_are_read(tmp_path, given):
    """By LIMIT beside CENS, which is no limit where CENS is 0; or where asked by the cells."""
    rows = ["1,0,.,100,1,.,.", "1,1,1.125,0,0,1,0.25", "1,2,3,0,0,-1,40.5", "1,3,2,0,0,1,.", "1,4,5,0,0,0,0"]
    text = "\n".join(["ID,TIME,DV,AMT,EVID,CENS,LIMIT", *rows, ""])
    if given:
        rows = ["1,0,.,100,1", "1,1,0.25..1.125,0,0", "1,2,3 .. 40.5,0,0", "1,3,<2,0,0", "1,4,5,0,0"]
        text = "\n".join(["ID,TIME,DV,AMT,EVID", *rows, ""])
    data = read(tmp_path, text, **given)
    np.testing.assert_array_equal(data.ys[0, :, 0], [np.nan, 1.125, 40.5, 2, 5])
    np.testing.assert_array_equal(data.censored[0, :, 0], [0, -1, -1, -1, 0])
    np.testing.assert_array_equal(data.other_end[0, :, 0], [np.nan, 0.25, 3, np.nan, np.nan])
    unsure = read(tmp_path, "ID,TIME,DV,AMT,EVID,CENS,LIMIT\n1,0,.,9,1,0,.\n1,1,2.250,0,0,1,1.125\n1,2,1,0,0,0,.\n")
    assert unsure.ys[0, 1, 0] == 2.25 and unsure.other_end[0, 1, 0] == 1.125


@pytest.mark.parametrize("given", [{}, {"censored": True}])
def test_values_beyond_limits_are_read(tmp_path, given):
    """By CENS, or where asked by signs in the cells."""
    rows = ["1,0,.,100,1,1,0", "1,1,5.0,0,0,2,0", "1,2,0.25,.,0,2,1", "2,0,.,50,1,1,.", "2,3,90,0,0,2,-1.0"]
    text = "\n".join(["ID,TIME,DV,AMT,EVID,CMT,CENS", *rows, ""])
    if given:
        rows = ["1,0,.,100,1,1", "1,1,5.0,0,0,2", "1,2,<0.25,.,0,2", "2,0,.,50,1,1", "2,3,> 90,0,0,2"]
        text = "\n".join(["ID,TIME,DV,AMT,EVID,CMT", *rows, ""])
    data = read(tmp_path, text, **given)
    np.testing.assert_array_equal(data.ys[0, :3, 0], [np.nan, 5.0, 0.25])
    np.testing.assert_array_equal(data.censored[0, :3, 0], [0, 0, -1])
    row = int(np.flatnonzero(data.ys[1, :, 0] == 90.0)[0])
    assert data.censored[1, row, 0] == 1
    assert guess_measured(tmp_path / "table.csv", ["gut", "c"]) == ["c"]
    assert doses_of(data, "gut") == [(0.0, 100.0)]


def test_columns_tell_the_kind_of_a_table():
    assert is_dosing_table(["id", "Time", "dv", "amt"]) and is_dosing_table(["ID", "TIME", "DV", "EVID"])
    assert not is_dosing_table(["id", "time", "dv"]) and not is_dosing_table(["time", "x", "y"])
