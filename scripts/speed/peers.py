"""Peers of node_fit in the benchmark: training steps of a neural ODE with other libraries.

All solve the same problem: every trajectory from its first row, an MLP 2-64-64-2 with tanh and the same weights, a
fifth-order method with adaptive steps, gradients through the solver's steps, Adam on the full batch.

- `loop`: Equinox, Diffrax and Optax in a plain Python loop, with one jitted step and a vmapped Tsit5 solve, similar to
  Diffrax's neural ODE tutorial (which has softplus and AdaBelief).
- `torchdiffeq`: `odeint` with dopri5; the batch is one system with common steps.
- `torchode`: dopri5 with a step size for each trajectory, run eagerly.

This file imports node_fit and the peers' packages only when they are needed.
"""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

DATA = Path(__file__).parents[2] / "data"
SIZES = (2, 64, 64, 2)
# So small that the field, and thus the work per step, stays the same for every contender.
GRADIENT_RATE = 1e-5
# The learning rate of the tutorial.
LEARNING_RATE = 3e-3
RTOL, ATOL = 1e-3, 1e-6
# Tight, so that the validation error is the model's and not the solver's; node_fit's own tolerances in float32.
TIGHT_RTOL, TIGHT_ATOL = 1e-6, 1e-8

Times = Float[np.ndarray, " time"]
States = Float[np.ndarray, "trajectory time 2"]
Step = Callable[[], float]
NEEDS = {
    "loop": ("diffrax", "equinox", "jax", "optax"),
    "torchdiffeq": ("torch", "torchdiffeq"),
    "torchode": ("torch", "torchode"),
}


class Reached(NamedTuple):
    """The end of a run to a target error: `time.time()`, training steps, and validation NRMSE."""

    at: float
    steps: int
    nrmse: float


def oscillator() -> tuple[Times, States]:
    """Times and states of the shipped oscillator, float32."""
    columns = np.loadtxt(DATA / "oscillator.csv", delimiter=",", skiprows=1, dtype=np.float32)
    trajectories = len(np.unique(columns[:, 0]))
    table = columns.reshape(trajectories, -1, 4)
    return table[0, :, 1], table[:, :, 2:]


def starting_weights(seed: int = 0) -> list[tuple[Float[np.ndarray, "out in"], Float[np.ndarray, " out"]]]:
    """Weight and bias of each layer, uniform within 1 / sqrt(inputs), as both Equinox and PyTorch draw them."""
    rng = np.random.default_rng(seed)
    layers = []
    for inputs, outputs in itertools.pairwise(SIZES):
        draw = rng.uniform(-1, 1, (outputs, inputs + 1)) / np.sqrt(inputs)
        layers.append((draw[:, :-1].astype(np.float32), draw[:, -1].astype(np.float32)))
    return layers


def fitted_weights() -> list[tuple[Float[np.ndarray, "out in"], Float[np.ndarray, " out"]]]:
    """Starting weights whose last layer fits the oscillator's finite differences.

    The field is then as fast as in a model during training. Near its random start it is so slow that four steps solve a
    whole trajectory, which leaves little to compare.
    """
    ts, ys = oscillator()
    *hidden, _ = starting_weights()
    x = ((ys[:, 1:] + ys[:, :-1]) / 2).reshape(-1, 2)
    for weight, bias in hidden:
        x = np.tanh(x @ weight.T + bias)
    rates = (np.diff(ys, axis=1) / np.diff(ts)[:, None]).reshape(-1, 2)
    ones = np.ones((len(x), 1), np.float32)
    last = np.linalg.lstsq(np.hstack([x, ones]), rates, rcond=1e-3)[0].T.astype(np.float32)
    return [*hidden, (last[:, :-1], last[:, -1])]


def jax_mlp(weights: Any) -> Any:
    """Equinox's MLP with these weights."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    mlp = eqx.nn.MLP(2, 2, SIZES[1], len(SIZES) - 2, activation=jnp.tanh, key=jax.random.key(0))
    leaves = [jnp.asarray(leaf) for layer in weights for leaf in layer]
    return eqx.tree_at(lambda m: [leaf for layer in m.layers for leaf in (layer.weight, layer.bias)], mlp, leaves)


def diffrax_solve(model: Any, times: Any, starts: Any, rtol: float, atol: float) -> Any:
    """Solves trajectories from `starts`, each with its own steps."""
    import diffrax
    import jax

    def solve(start):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: model(y)),
            diffrax.Tsit5(),
            t0=times[0],
            t1=times[-1],
            dt0=times[1] - times[0],
            y0=start,
            saveat=diffrax.SaveAt(ts=times),
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
        ).ys

    return jax.vmap(solve)(starts)


def jitted_update(optimizer: Any) -> Callable:
    """One step of the loop, from `(model, state, times, ys)` to the loss, the model and the state."""
    import equinox as eqx
    import jax.numpy as jnp

    @eqx.filter_value_and_grad
    def loss_and_gradient(model, times, ys):
        return jnp.mean((diffrax_solve(model, times, ys[:, 0], RTOL, ATOL) - ys) ** 2)

    @eqx.filter_jit
    def update(model, state, times, ys):
        loss, gradient = loss_and_gradient(model, times, ys)
        change, state = optimizer.update(gradient, state)
        return loss, eqx.apply_updates(model, change), state

    return update


def loop(ts: Times, ys: States, threads: int) -> Step:
    """A plain Python loop with Diffrax; XLA chooses its own threads."""
    import equinox as eqx
    import jax.numpy as jnp
    import optax

    optimizer = optax.adam(GRADIENT_RATE)
    update = jitted_update(optimizer)
    mlp, times, observed = jax_mlp(fitted_weights()), jnp.asarray(ts), jnp.asarray(ys)
    state = optimizer.init(eqx.filter(mlp, eqx.is_inexact_array))

    def step() -> float:
        nonlocal mlp, state
        loss, mlp, state = update(mlp, state, times, observed)
        return float(loss)

    return step


def loop_to_target(target: float, seed: int, limit: float) -> Reached:
    """Trains with the tutorial's recipe until the validation NRMSE is at most `target`, or `limit` seconds have passed.

    It uses minibatches of 32 trajectories, 500 steps on the first tenth of the times, then all of them. It checks the
    validation trajectories every 100 steps, as node_fit does. The trajectories are split as in `data=oscillator`.
    """
    import equinox as eqx
    import jax.numpy as jnp
    import optax

    began = time.monotonic()
    ts, ys = oscillator()
    order = np.random.default_rng(0).permutation(len(ys))
    held = round(0.1 * len(ys))
    validation, train = ys[order[held : 2 * held]], ys[order[2 * held :]]
    times, variance = jnp.asarray(ts), validation.var(axis=(0, 1))

    @eqx.filter_jit
    def nrmse(model, ys):
        predicted = diffrax_solve(model, times, ys[:, 0], TIGHT_RTOL, TIGHT_ATOL)
        return jnp.sqrt((((predicted - ys) ** 2).mean(axis=(0, 1)) / variance).mean())

    optimizer = optax.adam(LEARNING_RATE)
    update = jitted_update(optimizer)
    mlp = jax_mlp(starting_weights(seed))
    state = optimizer.init(eqx.filter(mlp, eqx.is_inexact_array))
    rng = np.random.default_rng(seed)
    for step in itertools.count(1):
        until = len(ts) // 10 if step <= 500 else len(ts)
        batch = jnp.asarray(train[rng.permutation(len(train))[:32], :until])
        _, mlp, state = update(mlp, state, times[:until], batch)
        if step % 100 == 0:
            error = float(nrmse(mlp, jnp.asarray(validation)))
            if error <= target or time.monotonic() - began > limit:
                return Reached(time.time(), step, error)
    raise AssertionError("the count of steps never ends")


def torch_step(ys: States, threads: int, solve: Callable[[Any, Any], Any]) -> Step:
    """A PyTorch training step around `solve(mlp, starts)`, which returns `(trajectory, time, state)`."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(threads)
    modules: list[torch.nn.Module] = []
    for weight, bias in fitted_weights():
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
        modules += [layer, torch.nn.Tanh()]
    mlp = torch.nn.Sequential(*modules[:-1])
    optimizer = torch.optim.Adam(mlp.parameters(), lr=GRADIENT_RATE)
    observed = torch.from_numpy(ys)

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.mean((solve(mlp, observed[:, 0]) - observed) ** 2)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def torchdiffeq(ts: Times, ys: States, threads: int) -> Step:
    """`torchdiffeq.odeint`, differentiated through its steps."""
    import torch  # pyright: ignore[reportMissingImports]
    from torchdiffeq import odeint  # pyright: ignore[reportMissingImports]

    times = torch.from_numpy(ts)

    def solve(mlp, starts):
        states = odeint(lambda t, y: mlp(y), starts, times, rtol=RTOL, atol=ATOL, method="dopri5")
        assert isinstance(states, torch.Tensor)
        return states.transpose(0, 1)

    return torch_step(ys, threads, solve)


def torchode(ts: Times, ys: States, threads: int) -> Step:
    """`torchode` with its integral controller, differentiated through its steps."""
    import torch  # pyright: ignore[reportMissingImports]
    import torchode as to  # pyright: ignore[reportMissingImports]

    times = torch.from_numpy(ts)

    def solve(mlp, starts):
        term = to.ODETerm(lambda t, y: mlp(y), with_stats=False)
        controller = to.IntegralController(atol=ATOL, rtol=RTOL, term=term)
        solver = to.AutoDiffAdjoint(to.Dopri5(term=term), controller)
        problem = to.InitialValueProblem(y0=starts, t_eval=times.expand(len(starts), -1))
        return solver.solve(problem).ys

    return torch_step(ys, threads, solve)


PEERS: dict[str, Callable[[Times, States, int], Step]] = {
    "loop": loop,
    "torchdiffeq": torchdiffeq,
    "torchode": torchode,
}
