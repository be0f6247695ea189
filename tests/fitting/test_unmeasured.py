"""States that equations have and no column measures."""

import functools

import numpy as np
import pytest

import node_fit
from node_fit.data.facts import Facts
from node_fit.fitting.problem import build_problem
from node_fit.fitting.unmeasured import with_empty_starts, with_hidden_of_equations
from node_fit.model.fields.known import Known
from node_fit.model.initial_state.rule import First, Stated
from node_fit.model.initial_state.trained import Fitted
from node_fit.options.options import Options

KA, KE, V = 1.2, 0.2, 20.0
TIMES = np.array([0, 0.25, 0.5, 1, 2, 4, 6, 9.0])
FIELD = functools.partial(
    Known,
    equations={"gut": "-ka*gut", "c": "ka*gut/V - ke*c"},
    constants={"ka": [1.0, 0, None], "ke": [0.1, 0, None], "V": [10.0, 0, None]},
)


def make_doses(amounts=(100.0, 200.0, 300.0), *, at=0.0, noise=0.0):
    """Concentrations after a dose into an empty gut (Bateman's function)."""
    later = np.maximum(TIMES - at, 0)
    shape = KA / (V * (KA - KE)) * (np.exp(-KE * later) - np.exp(-KA * later))
    ys = np.array(amounts)[:, None] * shape
    ys = ys + noise * np.random.default_rng(0).standard_normal(ys.shape)
    data = node_fit.Dataset.from_arrays(
        [TIMES] * len(amounts), list(ys[..., None]), states=["c"], trajectories=list("ABCDEF"[: len(amounts)])
    )
    events = [
        {"trajectory": name, "time": at, "state": "gut", "add": amount}
        for name, amount in zip(data.trajectories, amounts, strict=True)
    ]
    return node_fit.with_events(data, events)


def starts_of(data, **options):
    chosen, _ = with_hidden_of_equations(Options(field=FIELD, **options), data)
    return with_empty_starts(chosen, data, Facts.of(data))


def test_states_of_equations_without_a_column_are_hidden():
    options, choices = with_hidden_of_equations(Options(field=FIELD), make_doses())
    assert list(options.hidden) == ["gut"]
    assert str(choices[0]) == "hidden=[gut]: in the equations, and not measured"


def hidden_of(data, *, observation=None, **more):
    field = functools.partial(Known, constants={"k": 1.0}, **more)
    chosen = Options(field=field) if observation is None else Options(field=field, observation=observation)
    return with_hidden_of_equations(chosen, data)[0].hidden


def test_states_that_nothing_depends_on_are_left_to_the_field():
    data = make_doses()
    assert hidden_of(data, equations={"c": "-k*c", "cc": "k*c"}) == "auto"
    assert hidden_of(data, equations={"c": "-k*c", "cc": "k*cc"}) == "auto"
    assert hidden_of(data, equations={"c": "k*gut", "gut": "-k*gut", "ct": "1"}) == ["gut"]
    formulas = functools.partial(node_fit.FormulaReadout, formulas={"c": "increase(total)"})
    assert hidden_of(data, equations={"total": "k"}, observation=formulas) == ["total"]
    triggers = [{"when": "level - 1", "set": {"c": "0"}}]
    assert hidden_of(data, equations={"c": "-k*c", "level": "k"}, triggers=triggers) == ["level"]


@pytest.mark.parametrize("options", [Options(field=FIELD, hidden=["gut"]), Options(), Options(field=FIELD, hidden=1)])
def test_hidden_states_that_are_named_or_unknown_are_left_alone(options):
    assert with_hidden_of_equations(options, make_doses()) == (options, [])


def test_dosed_states_begin_empty_if_the_dose_comes_first():
    options, (choice,) = starts_of(make_doses())
    assert options.start.func is Fitted and options.start.keywords["absent"] == {"gut": 0.0}
    assert str(choice).startswith("start.absent.gut=0: a dose follows in the first row")


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (make_doses(at=0.5), {}),  # Rows before the dose tell the start.
        (make_doses(), {"start": Fitted}),
        (make_doses(), {"start": functools.partial(First, absent={"gut": 5.0})}),
    ],
)
def test_other_starts_are_left_alone(data, options):
    assert starts_of(data, **options)[1] == []


def test_a_state_that_only_some_trajectories_are_given_is_left_alone():
    data = make_doses()
    data.events.shift[1, 0] = 0.0
    assert starts_of(data)[1] == []


def test_many_trajectories_begin_empty_too():
    data = make_doses([100.0] * 3)
    facts = Facts.of(data)
    chosen, _ = with_hidden_of_equations(Options(field=FIELD), data)
    many = with_empty_starts(chosen, data, facts.__class__(**{**vars(facts), "trajectories": 500}))[0]
    assert many.start.func is First and many.start.keywords["absent"] == {"gut": 0.0}


def test_first_measurements_beside_stated_starts_are_warned_of():
    ts = np.linspace(0, 1, 5)
    data = node_fit.Dataset.from_arrays(ts, np.stack([np.exp(-ts), 1 - np.exp(-ts)], axis=1), states=["s", "p"])
    field = functools.partial(Known, equations={"s": "-k*s", "p": "k*s"}, constants={"k": 1.0})

    def warnings(**values):
        start = functools.partial(Stated, values=values)
        return build_problem(Options(field=field, start=start), data, None).warnings

    assert warnings(s="1.0", p="0") == ()
    assert warnings(s="1.0") == (
        "start.values has no p, which begins at its first measurement, as noisy as any other; if its start is known, "
        "add it, such as p: 0.",
    )


@pytest.mark.slow
def test_doses_determine_the_volume():
    """A start that is fitted takes the place of the dose, and leaves the volume open."""
    data = make_doses(noise=0.05)
    fit = node_fit.fit(data, field=FIELD, options=Options(precision="x64"))
    for name, true in (("ka", KA), ("ke", KE), ("V", V)):
        assert fit.constants[name] == pytest.approx(true, rel=0.05)
    interval = fit.confidence().constants["V"]
    assert interval.lower > 0.9 * V and interval.upper < 1.1 * V
    assert len(fit.attempts) == 1
    loose = node_fit.fit(data, field=FIELD, start=Fitted, options=Options(precision="x64", effort="quick"))
    assert any(sentence.startswith("V is not determined") for sentence in loose.confidence().undetermined)
