"""`fit`: from measured trajectories to a fitted model."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float

from . import parameters
from .construction import MakeField, MakeObservation, MakeStart
from .dataset import Dataset
from .diagnosis import Diagnosis, diagnose
from .ending import End
from .ensemble import Ensemble
from .evaluation import Score, score
from .fields import MLP, VectorField
from .loop import Loop
from .members import Member, Members
from .model import NeuralODE, Prediction
from .model_file import save
from .observations import MeasuredStates
from .observer import Moment, Observer, Record, Silent, Status
from .optimizers import AbstractOptimizer
from .precision import Precision, scope
from .recipes import Recipe
from .setting import Setting
from .solver import Solver
from .stage import Stage
from .starts import First
from .training import Scan

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fit:
    """A fitted model, and how the fit went.

    - `model`: with the parameters that were best on the validation data (on the training data if there are none); of
      several members that are kept, an `Ensemble`.
    - `members`: how each of several members ended; empty for a single one.
    - `status`: `completed`, `stopped_early`, `interrupted` or `failed`, and the `reason` in a sentence.
    - `history`: a `Record` for each chunk.
    - `steps`, `parameters`: steps taken, and numbers trained.
    - `compiles`: XLA compilations of training chunks, as JAX reported them: one a stage, none if the process had it.
    - `cached`: training chunks that came from JAX's compile cache instead.
    - `compile_seconds`, `train_seconds`: where the time went.
    - `devices`: over how many its arrays were spread.
    """

    model: NeuralODE | Ensemble
    status: Status
    reason: str
    history: list[Record]
    steps: int
    parameters: int
    compiles: int
    cached: int
    compile_seconds: float
    train_seconds: float
    members: tuple[End, ...] = ()
    devices: int = 1

    def predict(self, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None = None) -> np.ndarray:
        """Simulated trajectories in the user's units; see `NeuralODE.predict`."""
        return self.model.predict(data, ts)

    def bands(
        self, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None = None, level: float = 0.9
    ) -> Prediction:
        """The same with bands, of several members; see `Ensemble.bands`."""
        return self.model.bands(data, ts, level)

    def score(self, data: Dataset) -> Score:
        """How well simulated trajectories match the measured ones, in the user's units."""
        return score(data, self.predict(data))

    def diagnose(self, data: Dataset) -> Diagnosis:
        """What the fit has come to on the data that it was fitted to, and what to try next."""
        return diagnose(self.status, self.history, {"train": data}, {"train": self.predict(data)})

    def save(self, path: str | Path) -> None:
        """Writes the model to a file that `node_fit.load` reads."""
        save(self.model, path)


def fit(
    train: Dataset,
    *,
    validation: Dataset | None = None,
    field: MakeField | VectorField = MLP,
    hidden: int | Sequence[str] = 0,
    start: MakeStart = First,
    observation: MakeObservation = MeasuredStates,
    optimizer: AbstractOptimizer | None = None,
    solver: Solver | None = None,
    evaluation: Solver | None = None,
    recipe: Recipe | str | Sequence[Stage] = "default",
    ensemble: Members | None = None,
    steps: int = 2000,
    window: int | None = None,
    stride: int | None = None,
    batch_size: int | None = None,
    clip: float | None = None,
    ridge: float | Literal["auto"] = "auto",
    smoothness: float | None = None,
    kinetic_energy: float | None = None,
    physics: float | None = None,
    freeze: Sequence[str] = (),
    scale: bool = True,
    log: Sequence[str] = (),
    bounds: Mapping[str, Sequence[float | None]] | None = None,
    chunk_steps: int = 100,
    patience: int = 10,
    scan: Scan = "lax",
    precision: Precision | None = None,
    device: str = "auto",
    devices: int | None = 1,
    seed: int = 0,
    observer: Observer | None = None,
) -> Fit:
    """Fits a neural ODE to trajectories.

    **Arguments:**

    - `train`: what is fitted.
    - `validation`: what the best iterate is chosen on and early stopping looks at; may be left out.
    - `field`: the right-hand side: an `equinox.Module` called with `(t, y, u)`, or something that makes one when it
      is called with `(states, inputs, key=...)`, such as `functools.partial(MLP, width=32)`, or, if its first
      parameter is called `system`, with `(system, key=...)`, where the `System` holds names and scales.
    - `hidden`: states that nobody measured: their number, or their names.
    - `start`: where trajectories start: `First`, `Fitted`, `Encoder`, or partials of them.
    - `observation`: what is measured: `MeasuredStates`, `LinearReadout`, `NetworkReadout`, or partials of them.
    - `optimizer`: of the main stage; if absent, `LBFGS()`, or `Adam()` on minibatches.
    - `solver`: of training. `evaluation`: of validation and prediction; as `solver`, but tight and of at least the
      fifth order, if absent.
    - `recipe`: `default` begins with derivative matching, `direct` does not; or a `Recipe`, or stages of your own.
    - `ensemble`: how many members are fitted at once, and how they differ; a single one if absent.
    - `steps`: the most steps of the main stage. `batch_size`, `clip`: see `Stage`.
    - `window`, `stride`: fit windows of so many rows first, begun every `stride` rows, then whole trajectories.
    - `ridge`, `smoothness`, `kinetic_energy`, `physics`: weights of what is asked of the field besides; see `Penalty`.
      With `ridge="auto"`, that of a record of few values and more weights is the one with which a fit to the beginnings
      of the trajectories predicts their ends best; that of others is 0.
    - `freeze`: names of parts of the model that are not trained, such as `field.network.layers.0`.
    - `scale`: whether the field sees states, inputs and time of order one, rather than in the user's units.
    - `log`: names of positive states to see on a logarithmic scale. `bounds`: pairs of a lower and an upper bound,
      null for none, of states that stay within them, by name.
    - `chunk_steps`: steps between looks at the validation data, the log and the observer.
    - `patience`: chunks without a better validation loss after which a stage stops.
    - `scan`: `lax`, or `checkpointed` for less memory when the training itself is differentiated.
    - `precision`: `x32` or `x64`; the process's mode if absent.
    - `device`: `auto`, `cpu` or `gpu`. `devices`: over how many of them members are spread, or the trajectories of a
      single one; as many as divide these, and all there are if None.
    - `seed`: of initial parameters and minibatches.
    - `observer`: told of every chunk.

    **Raises:** `ValueError` if an argument is out of range or does not fit the data.
    """
    setting = Setting(
        field=field,
        hidden=hidden,
        start=start,
        observation=observation,
        optimizer=optimizer,
        solver=solver,
        evaluation=evaluation,
        recipe=recipe,
        steps=steps,
        window=window,
        stride=stride,
        batch_size=batch_size,
        clip=clip,
        ridge=ridge,
        smoothness=smoothness,
        kinetic_energy=kinetic_energy,
        physics=physics,
        freeze=freeze,
        scale=scale,
        log=log,
        bounds=bounds,
        chunk_steps=chunk_steps,
        patience=patience,
        scan=scan,
        precision=precision,
        device=device,
        devices=devices,
        seed=seed,
    )
    ensemble = ensemble or Members()
    ensemble.check(train, window)
    observer = observer or Silent()
    with scope(setting.kind):
        run = Run(train, validation)
        model, stages, notes = run.prepare(setting)
        observer.begin(model, notes)
        settings = [replace(setting, seed=ensemble.seed(seed, index)) for index in range(ensemble.size)]
        models = [model, *(other.model(train) for other in settings[1:])]
        draws = [ensemble.resample(seed, index) for index in range(ensemble.size)]
        members = [each.member(own, stages, draw) for each, own, draw in zip(settings, models, draws, strict=True)]
        loop = run.loop(setting, members)
        ends, moment = loop.run(observer)
        found = kept(loop, ends, moment, ensemble, train, validation)
        return run.fit(loop, found, together(ends), moment, tuple(ends) if ensemble.size > 1 else ())


class Run:
    """The clock and the programs of one or more fits to the same data."""

    def __init__(self, train: Dataset, validation: Dataset | None):
        self.train = train
        self.validation = validation
        self.loops: list[Loop] = []
        self.began = time.perf_counter()
        self.told = 0

    def prepare(self, setting: Setting) -> tuple[NeuralODE, Sequence[Stage], list[str]]:
        """A model with its initial parameters, what will be done to it, and notes on the choice of that."""
        model = setting.model(self.train)
        if self.validation is not None:
            model.check_channels(self.validation)
        stages, notes, trials = setting.stages(model, self.train)
        self.loops += trials
        return model, stages, notes

    def loop(self, setting: Setting, members: Sequence[Member]) -> Loop:
        loop = setting.loop(members, self.train, self.validation)
        given, used = len(setting.place.devices), len(loop.place.devices)
        if used < given:
            LOG.warning("%d of %d devices are in use, since members, or trajectories, are spread evenly", used, given)
        self.loops.append(loop)
        return loop

    def fit(
        self,
        loop: Loop,
        model: NeuralODE | Ensemble,
        end: End,
        moment: Moment,
        members: tuple[End, ...],
        history: list[Record] | None = None,
    ) -> Fit:
        """What has come out; compilations are told once."""
        news, self.told = self.loops[self.told :], len(self.loops)
        compile_seconds = sum((each.compile_seconds for each in news), 0.0)
        seconds = time.perf_counter() - self.began - sum(each.compile_seconds for each in self.loops)
        return Fit(
            model=model,
            status=end.status,
            reason=end.reason,
            history=loop.history if history is None else history,
            steps=moment.step,
            parameters=parameters.count(loop.parts[0].params),
            compiles=sum(each.compilations.count for each in news),
            cached=sum(each.compilations.cached for each in news),
            compile_seconds=compile_seconds,
            train_seconds=seconds,
            devices=len(loop.place.devices),
            members=members,
        )


def together(ends: Sequence[End]) -> End:
    """How a run of several members ended: as the first one that was interrupted, or that did not fail."""
    if len(ends) == 1:
        return ends[0]
    order: list[Status] = ["interrupted", "completed", "stopped_early", "failed"]
    first = min(ends, key=lambda end: order.index(end.status))
    counts = {status: sum(end.status == status for end in ends) for status in order}
    said = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items() if count)
    return End(first.status, f"{len(ends)} members: {said}; the first of these {first.reason}")


def kept(
    loop: Loop, ends: Sequence[End], moment: Moment, ensemble: Members, train: Dataset, validation: Dataset | None
) -> NeuralODE | Ensemble:
    """The best member, or all that have not failed."""
    state = moment.state
    # Where steps were made anew in the last chunk, the best is the chosen one.
    losses = np.where(np.isfinite(np.asarray(state.best.loss)), np.asarray(state.best.loss), state.chosen.loss)
    best = int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))
    alive = [index for index, end in enumerate(ends) if end.status != "failed"]
    if ensemble.size == 1 or ensemble.keep == "best" or not alive:
        return loop.fitted(moment, best)
    return Ensemble.of([loop.fitted(moment, index) for index in alive], train, validation)
