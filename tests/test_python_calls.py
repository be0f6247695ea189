"""Calls of the library as one would write them: parts of a model, names, keywords of groups, and fields of a user's."""

import functools
import inspect
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from conftest import SMALL, rotation
from omegaconf import OmegaConf

import node_fit as nf
from node_fit.app.config.configuration import build
from node_fit.model.make_model import FIELDS, OBSERVATIONS, STARTS
from node_fit.objectives.robust import LOSSES
from node_fit.optimizers.custom import OPTIMIZERS

CONF = Path(__file__).parent.parent / "conf"
QUICK = {"recipe": "direct", "penalty": nf.Penalty(), "training": nf.Training(steps=4, chunk_steps=2)}


@pytest.fixture(autouse=True)
def words_of_the_library(monkeypatch):
    """Disables the tests' type checker, which would refuse wrong arguments before the library does."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


# Parts of a model.


def test_known_equations_are_written_without_a_partial():
    equations, constants = {"x": "-w*y", "y": "w*x"}, {"w": [0.8, 0, None]}
    whole, partial = (
        nf.fit(rotation(), field=field, training=nf.Training(steps=40))
        for field in (
            nf.Known(equations=equations, constants=constants),
            functools.partial(nf.Known, equations=equations, constants=constants),
        )
    )
    assert whole.model.constants() == {"w": pytest.approx(1.0, rel=1e-4)}
    assert eqx.tree_equal(whole.model, partial.model)


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("field", nf.MLP(width=4, depth=1)),
        ("field", nf.Linear()),
        ("field", nf.SecondOrder(width=4)),
        ("field", nf.Hybrid(equations={"x": "-y", "y": "f"}, terms={"f": 1.0})),
        ("field", nf.Physical(field=lambda t, y, u: -y)),
        ("start", nf.Fitted(given=3)),
        ("start", nf.Encoder(rows=3, width=4)),
        ("start", nf.Stated(values={"x": 1.0, "y": "a"}, constants={"a": 0.1})),
        ("observation", nf.NetworkReadout(width=4)),
    ],
)
def test_any_part_may_be_written_without_what_the_data_give(key, part):
    model = nf.make_model(rotation(), **{"field": SMALL, key: part}, key=jax.random.key(0))
    by_partial = functools.partial(part.func, **part.keywords)
    other = nf.make_model(rotation(), **{"field": SMALL, key: by_partial}, key=jax.random.key(0))
    assert isinstance(getattr(model, key), part.func) and eqx.tree_equal(model, other)


def test_a_part_with_all_of_its_arguments_is_made_at_once():
    key = jax.random.key(0)
    assert isinstance(nf.MLP(2, key=key), nf.MLP) and isinstance(nf.Linear(states=2, key=key), nf.Linear)


class Damped(nf.AbstractVectorField):
    """A field of a user's."""

    rate: jax.Array

    def __init__(self, states, inputs, *, rate, key):
        self.rate = jnp.full(states, rate)

    def __call__(self, t, y, u):
        return -self.rate * y


def test_a_users_own_part_may_be_written_so_too():
    model = nf.make_model(rotation(), field=Damped(rate=0.5), key=jax.random.key(0))
    np.testing.assert_allclose(model.field.rate, [0.5, 0.5])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: nf.Known(equation={}, equations={}), r"Known has no argument 'equation'; did you mean 'equations'\?"),
        (lambda: nf.Known(constants={}), r"Known needs equations; write Known\(equations=\.\.\.\)\."),
        (lambda: nf.MLP(widht=8), r"MLP has no argument 'widht'; did you mean 'width'\?"),
        (lambda: Damped(), r"Damped needs rate; write Damped\(rate=\.\.\.\)\."),
        (lambda: nf.MLP(2), r".*missing.*'key'"),
        (nf.AbstractVectorField, r".*abstract.*"),
    ],
)
def test_a_part_that_lacks_an_argument_or_has_a_wrong_one_says_so_at_once(call, sentence):
    with pytest.raises(TypeError, match=rf"^{sentence}$"):
        call()


# Names.


def options_of(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def of_command(group: str, name: str):
    """What a name stands for on the command line."""
    node = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{name}.yaml"))
    return build({key: ({} if value == "???" else value) for key, value in node.items()}, group)


@pytest.mark.parametrize(
    ("group", "known"), [("field", FIELDS), ("start", {"auto": None, **STARTS}), ("observation", OBSERVATIONS)]
)
def test_names_of_parts_are_those_of_the_command_line(group, known):
    assert sorted(known) == options_of(group)
    for name in set(known) - {"auto"}:
        command = of_command(group, name)
        assert command.func is known[name]
        defaults = {key: each.default for key, each in inspect.signature(known[name]).parameters.items()}
        settings = {key: value for key, value in command.keywords.items() if value != defaults[key]}
        assert not {key for key, value in settings.items() if value not in ({}, [])}, "other settings than the default"


@pytest.mark.parametrize(("group", "known"), [("optimizer", OPTIMIZERS), ("loss", LOSSES)])
def test_names_of_optimizers_and_losses_are_those_of_the_command_line(group, known):
    assert sorted(known) == options_of(group)
    for name, own in known.items():
        assert own == of_command(group, name)
        assert getattr(nf.Options(**{group: name}), group) == own


def test_names_of_solvers_are_those_of_the_command_line():
    """Except that `solver=heun` also takes even steps there, which is an option of its own here."""
    assert "heun" in options_of("solver")
    for name in options_of("solver"):
        own, command = nf.Options(solver=name).solver, of_command("solver", name)
        assert own == command if name != "heun" else nf.Solver("heun", stepping="even", max_steps=16384) == command


def test_a_name_fits_as_its_object_does():
    names = {"field": "linear", "start": "fitted", "observation": "linear", "loss": "huber", "optimizer": "adamw"}
    objects = {
        "field": nf.Linear,
        "start": nf.Fitted,
        "observation": nf.LinearReadout,
        "loss": nf.Huber(),
        "optimizer": nf.Adam(weight_decay=1e-3),
    }
    named, made = (nf.fit(rotation(1), **each, solver="bosh3", **QUICK) for each in (names, objects))
    assert eqx.tree_equal(named.model, made.model) and named.options == made.options
    parts = {key: names[key] for key in ("field", "start", "observation")}
    model = nf.make_model(rotation(1), **parts, key=jax.random.key(0))
    assert isinstance(model.field, nf.Linear) and isinstance(model.start, nf.Fitted)
    assert nf.Plan(optimizer="adam").optimizer == nf.Adam()
    assert nf.Stage(nf.TrajectoryMatching(), "adam", 5).optimizer == nf.Adam()


# Keywords of groups.


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"steps": 20}, r"it is an argument of Training: pass training=node_fit\.Training\(steps=\.\.\.\)\."),
        ({"ridge": 0.1}, r"it is an argument of Penalty: pass penalty=node_fit\.Penalty\(ridge=\.\.\.\)\."),
        ({"log": ["x"]}, r".* pass scaling=node_fit\.Scaling\(log=\.\.\.\)\."),
        ({"rtol": 1e-3}, r".* pass solver=node_fit\.Solver\(rtol=\.\.\.\)\."),
        ({"learning_rate": 1e-2}, r".* pass optimizer=node_fit\.Adam\(learning_rate=\.\.\.\)\."),
        ({"width": 8}, r".* pass field=node_fit\.MLP\(width=\.\.\.\)\."),
        ({"equations": {}}, r".* pass field=node_fit\.Known\(equations=\.\.\.\)\."),
        ({"given": 3}, r".* pass start=node_fit\.Fitted\(given=\.\.\.\)\."),
        ({"size": 3}, r".* pass ensemble=node_fit\.Members\(size=\.\.\.\)\."),
        ({"optimiser": "adam"}, r"did you mean 'optimizer'\?"),
        ({"system": 1}, ""),
    ],
)
def test_an_argument_of_a_group_is_told_where_it_belongs(given, sentence):
    rest = f"; {sentence}" if sentence else r"\."
    with pytest.raises(TypeError, match=rf"^fit has no argument '{next(iter(given))}'{rest}$"):
        nf.fit(rotation(), **given)


# Fields that do not fit.


def own_field(call):
    return type("Own", (eqx.Module,), {"__annotations__": {"a": jax.Array}, "__call__": call})(jnp.ones((3, 3)))


CALLED = r"\(t, y, u\), of shapes \(\), \(2,\) and \(0,\)"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda self, t, y: -y, rf"must be called with {CALLED}, but its __call__ has other arguments: .*\."),
        (lambda self, t, y, u, args: -y, r"must be called with .*, but its __call__ has other arguments: .*'args'.*\."),
        (lambda self, t, y, u: self.a @ y, rf"fails when it is called with {CALLED}; the states are x, y: .*\."),
        (
            lambda self, t, y, u: y[jnp.zeros(3, int)],
            r"must return .* of x, y, .* of shape \(2,\), but it returns shape \(3,\) .*",
        ),
        (lambda self, t, y, u: y.sum(), r"must return .* but it returns shape \(\) of float32\."),
        (lambda self, t, y, u: jnp.zeros(2, int), r"must return .* but it returns shape \(2,\) of int.*"),
        (lambda self, t, y, u: [y[0], y[1]], r"must return .* but it returns a list\."),
    ],
)
def test_a_field_that_does_not_fit_gets_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=rf"^field Own {sentence}"):
        nf.fit(rotation(), field=own_field(call), **QUICK)


def test_a_field_that_fits_is_taken():
    fit = nf.fit(rotation(), field=own_field(lambda self, t, y, u: (self.a[:2, :2] - 1) @ y), **QUICK)
    assert fit.status == "completed"
