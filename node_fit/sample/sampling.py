"""Posterior sampling with the No-U-Turn Sampler, from the optimum, with the information there as mass matrix."""

import importlib
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ..data.dataset import Dataset
from ..evaluation.noise import deviations_at
from ..fitting.result import Fit
from ..likelihood.losses import AbstractLikelihood
from ..model.fields.known import quantities
from ..model.neural_ode import NeuralODE
from ..petab.fitting import PEtabFit
from ..petab.objective import Objective
from ..petab.tables import Problem
from ..population.fit import PopulationFit
from ..runtime.placement import scope, scope_of
from ..runtime.validation import check_argument
from ..uncertainty.confidence import at
from ..uncertainty.linearization import Information
from .density import Density, density_of_fit, density_of_problem
from .population import density_of_population

if TYPE_CHECKING:
    import pandas

# Maximum R-hat of converged chains, and minimum number of effective draws for reliable quantiles (Vehtari et al.,
# Bayesian Analysis 16, 2021).
LARGEST_RHAT, FEWEST_EFFECTIVE = 1.01, 400
# Maximum number of halvings of a chain's distance from the optimum until its density is finite.
MAX_HALVINGS = 6
# Maximum number of draws used for predictions, and the seed of their noise.
MAX_PREDICTED, NOISE_SEED = 200, 0
# Minimum number of warm-up steps per coordinate for a dense mass matrix instead of a diagonal one: the first windows of
# the warm-up have few draws.
STEPS_FOR_CORRELATIONS = 50
KINDS_OF_FIT = "a fit, a population's or a PEtab fit, or a PEtab problem"
NEEDS = 'sampling needs BlackJAX and ArviZ; install them with pip install "node_fit[sample]".'


def import_arviz() -> PyTree:
    """Imports ArviZ without its warnings about its next version.

    **Raises:** `ImportError` that names the packages to install.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            return importlib.import_module("arviz")
        except ImportError:
            raise ImportError(NEEDS) from None


@dataclass(frozen=True)
class Posterior:
    """Draws from the posterior of a fit.

    - `constants`: the draws of each constant in the user's units, shape `(chain, draw)`; derived quantities follow.
    - `parameters`: the draws of all parameters, shape `(chain, draw, parameter)`.
    - `log_density`, `diverging`: log density of each draw, and whether it diverged, shape `(chain, draw)`.
    - `prior`: the prior in words. `seconds`: duration of compilation, warm-up and draws; `sampling_seconds`: of the
      draws alone.
    - `fit`: the sampled fit; None for a population or a PEtab problem.
    """

    constants: Mapping[str, Float[np.ndarray, "chain draw"]]
    parameters: Float[np.ndarray, "chain draw parameter"]
    log_density: Float[np.ndarray, "chain draw"]
    diverging: np.ndarray
    prior: str
    seconds: float
    sampling_seconds: float
    fit: Fit | None = field(default=None, repr=False)

    @cached_property
    def rhat(self) -> dict[str, float]:
        """Rank-normalised split R-hat by constant; about 1 if the chains agree."""
        arviz = import_arviz()
        return {name: float(arviz.rhat(draws)) for name, draws in self.constants.items()}

    @cached_property
    def effective(self) -> dict[str, float]:
        """Effective sample size by constant: the lesser of those of the bulk and of the tails."""
        arviz = import_arviz()
        return {
            name: min(float(arviz.ess(draws, method="bulk")), float(arviz.ess(draws, method="tail")))
            for name, draws in self.constants.items()
        }

    def __str__(self) -> str:
        rows = [
            f"{name} = {middle:.4g} [{low:.4g}, {high:.4g}]"
            for name, (low, middle, high) in self.quantiles((0.025, 0.5, 0.975)).items()
        ]
        return "\n".join([*rows, self.sentence])

    @property
    def sentence(self) -> str:
        """Convergence diagnostics of the draws in words, with advice if they are insufficient."""
        chains, draws = map(int, self.log_density.shape)
        rhat = max(self.rhat, key=lambda name: self.rhat[name])
        few = min(self.effective, key=lambda name: self.effective[name])
        count = int(self.diverging.sum())
        summary = (
            f"{chains} chains of {draws} draws: R-hat at most {self.rhat[rhat]:.3f} ({rhat}), at least "
            f"{self.effective[few]:.0f} effective draws ({few}), {count or 'no'} divergence{'' if count == 1 else 's'}"
        )
        if not self.rhat[rhat] <= LARGEST_RHAT:
            return f"{summary}; the chains do not agree, so do not use them: draw more, or give a prior."
        if count:
            return (
                f"{summary}; the posterior has corners that were left out: raise acceptance to 0.95, or give a prior."
            )
        if not self.effective[few] >= FEWEST_EFFECTIVE:
            return f"{summary}; ends of intervals are rough: draw more."
        return f"{summary}."

    def quantiles(self, levels: Sequence[float] = (0.025, 0.5, 0.975)) -> dict[str, tuple[float, ...]]:
        """Returns quantiles of each constant."""
        return {
            name: tuple(float(value) for value in np.quantile(draws, list(levels)))
            for name, draws in self.constants.items()
        }

    def to_frame(self) -> "pandas.DataFrame":
        """Returns a `pandas.DataFrame` with a row for each draw: chain, draw, constants, log density, divergence."""
        import pandas as pd

        chains, draws = map(int, self.log_density.shape)
        numbers = np.arange(chains * draws)
        places: dict[str, np.ndarray] = {"chain": numbers // draws, "draw": numbers % draws}
        constants = {name: values.reshape(-1) for name, values in self.constants.items()}
        last = {"log_density": self.log_density.reshape(-1), "diverging": self.diverging.reshape(-1)}
        return pd.DataFrame(places | constants | last)

    def save(self, path: str | Path) -> None:
        """Writes the draws to a Parquet file."""
        self.to_frame().to_parquet(path)

    def to_arviz(self) -> PyTree:
        """Returns the draws as ArviZ's `InferenceData`."""
        arviz = import_arviz()
        stats = {"lp": self.log_density, "diverging": self.diverging}
        return arviz.from_dict(posterior=dict(self.constants), sample_stats=stats)

    def predict(self, data: Dataset, *, noise: bool = False, size: int = MAX_PREDICTED) -> Float[np.ndarray, "..."]:
        """Simulates trajectories of evenly spaced draws, in the user's units.

        **Arguments:** `noise`: whether to add measurement noise. `size`: maximum number of draws.

        **Returns:** shape `(draw, trajectory, time, state)`.

        **Raises:** `ValueError` for a population or a PEtab problem.
        """
        if self.fit is None:
            raise ValueError(
                "draws of a population or a PEtab problem predict nothing here; use the population's fit.predict, or "
                "the problem's objective."
            )
        flat = self.parameters.reshape(-1, self.parameters.shape[2])
        chosen = flat[np.linspace(0, len(flat) - 1, min(size, len(flat))).astype(int)]
        information, rng = Information(self.fit.evidence), np.random.default_rng(NOISE_SEED)
        trajectories: list[np.ndarray] = []
        for x in chosen:
            model = at(information, x)
            ys = model.predict(data)
            trajectories.append(draw_measurements(model, self.fit, information, data, ys, rng) if noise else ys)
        return np.stack(trajectories)

    def bands(
        self, data: Dataset, level: float = 0.9, *, noise: bool = True
    ) -> tuple[Float[np.ndarray, "trajectory time state"], Float[np.ndarray, "trajectory time state"]]:
        """Returns the edges that enclose a share of the draws' trajectories, by default with measurement noise."""
        ys = self.predict(data, noise=noise)
        return np.nanquantile(ys, (1 - level) / 2, axis=0), np.nanquantile(ys, (1 + level) / 2, axis=0)


def draw_measurements(
    model: NeuralODE,
    fit: Fit,
    information: Information,
    data: Dataset,
    ys: Float[np.ndarray, "trajectory time state"],
    rng: np.random.Generator,
) -> Float[np.ndarray, "trajectory time state"]:
    """Adds noise to predictions, drawn from the noise model or from a normal distribution on the scale of the fit."""
    loss, normal = fit.options.loss, rng.standard_normal(ys.shape)
    assert isinstance(loss, AbstractLikelihood)
    if model.noise is None or not (model.noise.has_formulas or loss.is_count):
        level = information.noise_of_channels[0]
        return model.scaler.unscale_states(model.scaler.scale_states(ys) + level * normal)
    if loss.is_count:
        means = np.maximum(ys, 0.0)
        if not loss.shapes:
            return rng.poisson(means).astype(float)
        size = 1 / np.exp(np.asarray(model.noise.log_shapes()[0], np.float64))
        return rng.negative_binomial(size, size / (size + means)).astype(float)
    sigma = deviations_at(model, loss, data, ys)
    spread = np.where(model.noise.is_log(), ys * np.exp(sigma / np.maximum(np.abs(ys), 1e-300) * normal), ys)
    scale = np.asarray(model.scaler.state_scale, np.float64)
    on_line = model.scaler.unscale_states(model.scaler.scale_states(ys) + sigma / scale * normal)
    return np.where(model.noise.is_log(), spread, on_line)


def sample(
    fit: Fit | PopulationFit | PEtabFit | Problem | Objective,
    *,
    draws: int = 1000,
    chains: int = 4,
    warmup: int = 500,
    acceptance: float = 0.8,
    prior: Mapping[str, Sequence[object]] | None = None,
    seed: int = 0,
    tell: Callable[[str], None] = lambda stage: None,
) -> Posterior:
    """Draws from the posterior of a fit with the No-U-Turn Sampler (Hoffman and Gelman, JMLR 15, 2014; BlackJAX).

    ```python
    posterior = node_fit.sample(fit)
    print(posterior)                      # medians, intervals, and how good the draws are
    posterior.save("draws.parquet")
    ```

    Chains start around the optimum, in coordinates in which the information matrix there is the identity.

    **Arguments:**

    - `fit`: a fit of known or hybrid equations; a fit of a population, whose subjects' effects are also drawn; a PEtab
      fit; or a PEtab problem with stored parameters.
    - `draws`, `chains`, `warmup`: draws of each chain, chains, and steps before the draws that adapt the sampler.
    - `acceptance`: the target acceptance rate; a higher rate takes smaller steps.
    - `prior`: priors of constants by name, such as `{"k": ("lognormal", -1.0, 0.5)}`, in the user's units; others are
      flat, in their logarithm for positive ones. A PEtab problem has priors of its own.
    - `seed`: seed of the draws.
    - `tell`: called with a description of each stage.

    **Returns:** a `Posterior`.

    **Raises:** `ValueError` if the fit has no likelihood, or the data leave a direction open; `ImportError` that names
    the packages to install.
    """
    check_settings(draws, chains, warmup, acceptance, seed)
    check_argument("fit", fit, Fit | PopulationFit | PEtabFit | Problem | Objective, KINDS_OF_FIT)
    tell("looking around the optimum")
    density, place = density_and_scope(fit, prior)
    with place:
        chain = draw_chains(density, draws, chains, warmup, acceptance, jax.random.key(seed), tell)
    parameters = density.parameters(chain.coordinates)
    constants = density.values(parameters)
    if isinstance(fit, Fit):
        constants |= {
            quantity.name: np.broadcast_to(np.asarray(quantity.of(constants)), constants_shape(constants))
            for quantity in quantities(fit.options.derived, tuple(constants))
        }
    return Posterior(
        constants,
        parameters,
        chain.log_density,
        chain.diverging,
        density.prior,
        chain.seconds,
        chain.sampling_seconds,
        fit if isinstance(fit, Fit) else None,
    )


def check_settings(draws: int, chains: int, warmup: int, acceptance: float, seed: int) -> None:
    """Rejects settings of `sample` that are out of range."""
    for name, value in (("draws", draws), ("chains", chains), ("warmup", warmup), ("seed", seed)):
        check_argument(name, value, int)
    if draws < 4 or chains < 2 or warmup < 20:
        raise ValueError(f"draws, chains and warmup must be at least 4, 2 and 20, got {draws}, {chains}, {warmup}.")
    if not 0 < acceptance < 1:
        raise ValueError(f"acceptance must be above 0 and below 1, got {acceptance}.")


def constants_shape(constants: Mapping[str, np.ndarray]) -> tuple[int, ...]:
    return next(iter(constants.values())).shape


def density_and_scope(
    fit: Fit | PopulationFit | PEtabFit | Problem | Objective, prior: Mapping[str, Sequence[object]] | None
) -> tuple[Density, AbstractContextManager[None]]:
    """Returns the posterior density, and the precision in which it is traced."""
    if isinstance(fit, Fit):
        with scope_of(fit.evidence.model):
            return density_of_fit(fit.evidence, prior), scope_of(fit.evidence.model)
    if isinstance(fit, PopulationFit):
        with scope("x64"):
            return density_of_population(fit, prior), scope("x64")
    if prior:
        raise ValueError("a PEtab problem has priors of its own; write them in its table of parameters.")
    objective = fit.objective if isinstance(fit, PEtabFit) else fit if isinstance(fit, Objective) else Objective(fit)
    x = fit.x if isinstance(fit, PEtabFit) else objective.nominal
    if not np.isfinite(x).all():
        raise ValueError("the problem stores no value of some parameters; fit it first, and pass the fit.")
    return density_of_problem(objective, x), scope("x64")


@dataclass(frozen=True)
class Chains:
    """The draws of all chains; arrays as in `Posterior`."""

    coordinates: Float[np.ndarray, "chain draw coordinate"]
    log_density: Float[np.ndarray, "chain draw"]
    diverging: np.ndarray
    seconds: float
    sampling_seconds: float


def draw_chains(
    density: Density,
    draws: int,
    chains: int,
    warmup: int,
    acceptance: float,
    key: PRNGKeyArray,
    tell: Callable[[str], None],
) -> Chains:
    """Adapts the sampler of each chain, and draws from it."""
    try:
        blackjax: PyTree = importlib.import_module("blackjax")
    except ImportError:
        raise ImportError(NEEDS) from None
    began = time.perf_counter()
    log = density.log
    start_key, adapt_key, draw_key = jax.random.split(key, 3)
    starts = jax.random.normal(start_key, (chains, density.size))
    is_diagonal = warmup < STEPS_FOR_CORRELATIONS * density.size
    adaptation = blackjax.window_adaptation(blackjax.nuts, log, is_diagonal, target_acceptance_rate=acceptance)

    def adapt(key: PRNGKeyArray, start: Array) -> PyTree:
        (state, settings), _ = adaptation.run(key, move_to_finite(log, start), warmup)
        return state, settings

    def draw(key: PRNGKeyArray, state: PyTree, settings: PyTree) -> PyTree:
        step = blackjax.nuts(log, **settings).step

        def advance(state: PyTree, key: PRNGKeyArray) -> PyTree:
            state, info = step(key, state)
            return state, (state.position, state.logdensity, info.is_divergent)

        return jax.lax.scan(advance, state, jax.random.split(key, draws))[1]

    map_chains = map_on_cores if density.on_cores else map_in_batch
    tell(f"warming up {chains} chains by {warmup} steps")
    adapted = map_chains(adapt, jax.random.split(adapt_key, chains), starts)()
    run = map_chains(draw, jax.random.split(draw_key, chains), *adapted)
    tell(f"drawing {draws} times from each of {chains} chains")
    sampling = time.perf_counter()
    positions, values, diverging = (np.asarray(array) for array in run())
    ended = time.perf_counter()
    return Chains(
        np.asarray(positions, np.float64),
        np.asarray(values, np.float64),
        diverging,
        ended - began,
        ended - sampling,
    )


def map_in_batch(function: Callable[..., PyTree], *values: PyTree) -> Callable[[], PyTree]:
    """Compiles a function and returns a call that maps it over all chains in a batch."""
    jitted: PyTree = jax.jit(jax.vmap(function))
    program: PyTree = jitted.lower(*values).compile()
    return lambda: jax.block_until_ready(program(*values))


def map_on_cores(function: Callable[..., PyTree], *values: PyTree) -> Callable[[], PyTree]:
    """Compiles a function and returns a call that maps it over chains in threads, one per core."""
    of_chains = [jax.tree.map(lambda leaf, index=index: leaf[index], values) for index in range(len(values[0]))]
    jitted: PyTree = jax.jit(function)
    program: PyTree = jitted.lower(*of_chains[0]).compile()

    def call_on(own: PyTree) -> PyTree:
        return jax.block_until_ready(program(*own))

    def call() -> PyTree:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            results = list(pool.map(call_on, of_chains))
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)

    return call


def move_to_finite(log: PyTree, start: Array) -> Array:
    """Moves a start towards the optimum until its density is finite."""

    def halve(_: int, point: Array) -> Array:
        return jnp.where(jnp.isfinite(log(point)), point, point / 2)

    return jax.lax.fori_loop(0, MAX_HALVINGS, halve, start)
