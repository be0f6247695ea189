"""Recipes as data: their selected stages, what stages inherit, and what each kind of stage does."""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.problems import SMALL, fit_to, rotation
from omegaconf import OmegaConf

import node_fit as nf
from node_fit.app.config.build import build
from node_fit.data.facts import Facts
from node_fit.options.recipes import RECIPES, make_stages
from node_fit.runtime.placement import scope

pytestmark = pytest.mark.slow

QUICK = {"field": SMALL, "chunk_steps": 10, "precision": "x64"}
SHOOTING = functools.partial(nf.MultipleShooting, rows=4)


class Stages(nf.Callback):
    """Records the names of started stages, and the notes."""

    def __init__(self):
        self.names, self.notes, self.progress = [], [], []

    def on_fit_start(self, model, notes):
        self.notes = list(notes)

    def on_stage_start(self, stage):
        self.names.append(stage)

    def on_chunk_end(self, records, state):
        self.progress.append(float(state.members[0].progress))


def taken(recipe, data=None, **options):
    seen = Stages()
    fit_to(data or rotation(), recipe=recipe, callbacks=[seen], **{**QUICK, "steps": 10, **options})
    return seen


def test_the_default_begins_with_derivatives():
    assert taken("default").names == ["derivative", "main"]
    assert taken("direct").names == ["main"]


def test_a_stage_that_makes_no_sense_is_left_out_with_a_word():
    seen = taken("default", hidden=1)
    assert "derivative" not in seen.names and seen.names[-1] == "main"
    assert "no derivative stage, since the derivatives of states that are not measured are unknown" in seen.notes[0]
    plan = nf.Recipe({"shooting": nf.Plan(functools.partial(nf.MultipleShooting, rows=50)), "main": nf.Plan()})
    seen = taken(plan)
    assert seen.names == ["main"]
    assert "no trajectory is longer than a segment of 50 intervals" in seen.notes[0]


def test_a_stage_instead_of_another():
    recipe = nf.Recipe(
        {
            "derivative": nf.Plan(nf.DerivativeMatching, nf.LBFGS(), 10),
            "shooting": nf.Plan(SHOOTING, instead_of="derivative"),
            "main": nf.Plan(),
        }
    )
    assert taken(recipe).names == ["derivative", "main"]
    assert taken(recipe, hidden=1).names == ["shooting", "main"]
    with pytest.raises(ValueError, match="'main' has instead_of='derivative', which is not an earlier stage"):
        nf.Recipe({"main": nf.Plan(instead_of="derivative")})
    with pytest.raises(ValueError, match="at least one stage"):
        nf.Recipe({})
    with pytest.raises(ValueError, match=r"stage 'main' must be a node_fit\.Plan, got inf"):
        nf.Recipe({"derivative": nf.Plan(nf.DerivativeMatching), "main": float("inf")})


def test_what_a_plan_leaves_out_is_that_of_the_fit():
    main = nf.Stage(nf.TrajectoryMatching(nf.Penalty(0.5), nf.Solver("heun")), nf.Adam(0.1, clip=1.0), 77, "main", 2)
    recipe = nf.Recipe(
        {
            "derivative": nf.Plan(nf.DerivativeMatching, nf.LBFGS(), 5),
            "shooting": nf.Plan(SHOOTING, nf.LBFGS()),
            "main": nf.Plan(),
        }
    )
    model = nf.make_model(rotation(), field=SMALL, key=jax.random.key(0))
    (derivative, shooting, main), notes = make_stages(recipe, main, model, Facts.of(rotation()))
    assert not notes
    assert (derivative.steps, derivative.batch_size, type(derivative.optimizer)) == (5, None, nf.LBFGS)
    assert derivative.objective.penalty.ridge == 0.5
    assert shooting.objective.solver.method == "heun" and shooting.objective.rows == 4 and shooting.steps == 77
    assert (main.steps, main.batch_size, main.optimizer.clip, main.name) == (77, 2, 1.0, "main")


def test_windows_come_before_whole_trajectories():
    assert taken("default", window=6).names == ["derivative", "windows", "main"]


def test_shooting_fits_a_rotation_and_closes_its_gaps():
    data = rotation(times=40)
    recipe = [nf.Stage(nf.MultipleShooting(rows=5, most=100.0), nf.LBFGS(), 200)]
    fit = fit_to(data, field=nf.Linear, recipe=recipe, chunk_steps=20, precision="x64")
    assert fit.score(data).nrmse < 1e-2


def test_shooting_finds_hidden_states():
    """The velocity is not measured; segments with free starts determine it."""
    whole = rotation(times=40)
    data = nf.Dataset.from_arrays(whole.ts[0], whole.ys[..., :1])
    recipe = nf.Recipe({"shooting": nf.Plan(functools.partial(SHOOTING, rows=8), nf.LBFGS(), 200), "main": nf.Plan()})
    fit = fit_to(
        data, field=nf.Linear, hidden=1, start=nf.Encoder, recipe=recipe, steps=300, chunk_steps=50, precision="x64"
    )
    assert fit.score(data).nrmse < 0.02


def test_an_objective_grows_chunk_by_chunk():
    seen = taken([nf.Stage(nf.MultipleShooting(rows=4), nf.LBFGS(), 100)])
    assert seen.progress == sorted(seen.progress) and seen.progress[-1] == 1.0
    assert 0 < seen.progress[0] < 0.2


@pytest.mark.usefixtures("without_cache")
def test_a_horizon_grows_without_a_compilation_for_each():
    data = rotation(times=40)
    stage = nf.Stage(nf.TrajectoryMatching(horizon=0.2), nf.LBFGS(), 100)
    seen = Stages()
    fit = fit_to(data, field=nf.Linear, recipe=[stage], chunk_steps=10, precision="x64", callbacks=[seen])
    # Seven horizons; a second compilation covers more steps.
    assert len(set(seen.progress)) >= 7 and fit.compiles <= 2
    assert fit.score(data).nrmse < 1e-2


def test_beyond_the_horizon_nothing_counts():
    """Data beyond a horizon do not affect the first chunk."""
    data = rotation(times=40)
    spoiled = nf.Dataset.from_arrays(data.ts[0], np.where(data.ts[..., None] > 0.6 * data.ts.max(), 3.0, data.ys))
    field = nf.Linear(2, key=jax.random.key(0))

    def first(data):
        seen = []

        class Look(Stages):
            def on_chunk_end(self, records, state):
                seen.append(records[0].train_loss)
                return "enough"

        stage = nf.Stage(nf.TrajectoryMatching(horizon=0.5), nf.LBFGS(), 100)
        fit_to(data, field=field, recipe=[stage], scale=False, chunk_steps=5, precision="x64", callbacks=[Look()])
        return seen[0]

    assert first(data) == pytest.approx(first(spoiled), rel=1e-6)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: nf.MultipleShooting(rows=0), "rows of a segment must be at least 1"),
        (lambda: nf.MultipleShooting(least=2.0, most=1.0), "at most as large as most, got 2.0 and 1.0"),
        (lambda: nf.TrajectoryMatching(horizon=1.5), "horizon must be above 0 and at most 1, got 1.5"),
        (lambda: nf.TrajectoryMatching(solver=nf.Solver("kvaerno3"), horizon=0.5), "horizon needs given steps"),
        (lambda: nf.Penalty(smoothness=-1.0), "smoothness must be finite and not negative"),
        (lambda: nf.Stage(nf.MultipleShooting(), nf.Adam(), 5, batch_size=2), "segments belong together"),
    ],
)
def test_what_makes_no_sense_is_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.parametrize("name", ["smoothness", "kinetic_energy"])
def test_penalties_do_what_they_say(name):
    data = rotation()
    options = {**QUICK, "recipe": "direct", "steps": 60}
    free, held = (fit_to(data, **{name: weight}, **options) for weight in (None, 30.0))

    def measure(fit):
        weight = nf.Penalty(**{name: 1.0})
        with scope("x64"):
            batch = jax.tree.map(jnp.asarray, nf.Batch.from_dataset(data, fit.model.scaler))
            return float((weight.along(fit.model.field, batch, batch.ys) ** 2).sum())

    assert measure(held) < 0.7 * measure(free)


def test_the_recipe_that_the_docs_show_is_built():
    text = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
    node = OmegaConf.create(re.search(r"```yaml\n(.*?)```", text, re.DOTALL).group(1))
    recipe = build(node, "recipe")
    assert list(recipe.stages) == ["derivative", "shooting", "growing", "main"]
    assert taken(recipe, rotation(times=25), steps=5).names == ["derivative", "growing", "main"]


@pytest.mark.parametrize("name", ["default", "direct"])
def test_named_recipes_are_those_of_conf(name):
    """Recipes of the same name have the same stages in the command and in the library."""
    node = OmegaConf.load(Path(__file__).parents[2] / "conf" / "recipe" / f"{name}.yaml")
    theirs, ours = build(node, "recipe"), RECIPES[name]
    assert list(theirs.stages) == list(ours.stages)
    for mine, read in zip(ours.stages.values(), theirs.stages.values(), strict=True):
        assert (mine.steps, type(mine.optimizer)) == (read.steps, type(read.optimizer))
