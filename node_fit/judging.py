"""What a chunk has come to: which iterate is the best so far, whether there is progress, and a row of the log."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from .batch import Batch
from .ending import PROGRESS
from .members import Crew
from .model import NeuralODE
from .objectives.objective import masked_mean
from .observer import Moment, Record
from .training import TrainState


def judge(
    crew: Crew,
    stage: str,
    seconds: float,
    before: Moment,
    new: TrainState,
    rate: Float[Any, "*member"],
    validation: Float[Any, "*member"] | None,
) -> tuple[TrainState, list[Record]]:
    """The state after a chunk with its best iterate and counters brought up to date, and a record of each member.

    **Arguments:**

    - `crew`: of the members.
    - `stage`, `seconds`: its name, and the time since the run began.
    - `before`: where the chunk began. `new`: the state after its steps.
    - `rate`: the learning rate. `validation`: the loss of the chosen iterate on the validation data, if there are some.
    """
    old = before.state
    loss, waits = np.asarray(new.chosen.loss), old.over
    judged = loss if validation is None else np.asarray(validation, loss.dtype)
    better = (judged < old.best.loss) & ~waits
    falls = (loss < (1 - PROGRESS) * old.mark) & ~waits
    one = np.asarray(~waits).astype(np.int32)
    state = replace(
        new,
        best=crew.choose(better, replace(new.chosen, loss=judged), old.best),
        stale=np.where(better, 0, old.stale + one).astype(np.int32),
        mark=np.where(falls, loss, old.mark),
        plateau=np.where(falls, 0, old.plateau + one).astype(np.int32),
    )
    figures = {
        "step": before.offset + new.step,
        "train_loss": loss,
        "validation_loss": loss if validation is None else validation,
        "gradient_norm": new.chosen.gradient_norm,
        "learning_rate": rate,
        "evaluations": new.evaluations - old.evaluations,
        "failed_solves": new.failed - old.failed,
    }
    rows = zip(*(crew.each(values) for values in figures.values()), strict=True)
    records = [
        Record(**dict(zip(figures, row, strict=True)), stage=stage, seconds=seconds, member=member)
        for member, row in enumerate(rows)
        if not crew.each(waits)[member]
    ]
    if validation is None:
        records = [replace(record, validation_loss=None) for record in records]
    return state, records


def validation_loss(static: PyTree, params: PyTree, own: PyTree, shared: PyTree, batch: Batch):
    """Mean squared residual of simulated trajectories in scaled units; infinite if a solve fails."""
    model: NeuralODE = eqx.combine(params, own, shared, static)
    solution = model.forecast(batch, joint=batch.joint)
    loss = masked_mean((solution.ys - batch.ys) ** 2, batch.mask)
    return jnp.where(jnp.isfinite(loss), loss, jnp.inf)
