"""Seconds of a solve and of a gradient over the number of trajectories, on a GPU and on the CPU beside it.

    python scripts/speed/gpu.py [--trajectories 1 1000 100000] [--devices gpu cpu] [--contenders node_fit]

prints a table in Markdown. The problem is that of `peers.py`: trajectories of the oscillator from starts that are
drawn, 100 times each, an MLP 2-64-64-2, float32, rtol 1e-3 and atol 1e-6. Contenders: `node_fit`, over held steps that
meet the tolerances, one row of them for all; `diffrax`, a vmapped solve whose trajectories choose their steps; and
`torchdiffeq`, if it is installed, whose trajectories share their steps. Where memory does not suffice, it says so.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import peers

import node_fit as nf
from node_fit.solver.held_steps import settle
from node_fit.solver.problem import InitialValueProblem

REPEATS = 5
CONTENDERS = ("node_fit", "diffrax", "torchdiffeq")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", nargs="+", type=int, default=[10**power for power in range(7)])
    parser.add_argument("--devices", nargs="+", choices=("gpu", "cpu"), default=("gpu", "cpu"))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    given = parser.parse_args()
    print("| trajectories | device | contender | solve [ms] | gradient [ms] |\n|---|---|---|---|---|")
    for count in given.trajectories:
        for device in given.devices:
            for name, solve, gradient in contenders(count, device, given.contenders):
                print(f"| {count:,} | {device} | {name} | {timed(solve)} | {timed(gradient)} |", flush=True)


def contenders(count: int, device: str, names: Sequence[str]) -> Iterator[tuple[str, Callable, Callable]]:
    """A name, and functions that wait for a solve and for a gradient."""
    ts, ys = peers.oscillator()
    draws = np.random.default_rng(0).integers(len(ys), size=count)
    starts = ys[draws, 0] * np.linspace(0.9, 1.1, count, dtype=np.float32)[:, None]
    on = jax.devices(device)[0]
    weights, rest = eqx.partition(peers.jax_mlp(peers.fitted_weights()), eqx.is_array)
    field = eqx.combine(jax.device_put(weights, on), rest)
    times, y0 = jax.device_put((jnp.asarray(ts), jnp.asarray(starts)), on)
    grid, solve = held(times, y0)
    for name, solver in (("node_fit", solve), ("diffrax", adaptive)):
        if name in names:
            yield name, *compiled(solver, field, times, y0, grid)
    if "torchdiffeq" in names and (found := torch_functions(ts, starts, device)):
        yield "torchdiffeq", *found


def compiled(solve: Callable, *arguments: Any) -> tuple[Callable, Callable]:
    forward = eqx.filter_jit(solve)
    backward = eqx.filter_jit(eqx.filter_grad(lambda field, *rest: jnp.mean(solve(field, *rest) ** 2)))
    return tuple(lambda f=f: jax.block_until_ready(f(*arguments)) for f in (forward, backward))  # pyright: ignore[reportReturnType]


def adaptive(field: Any, times: jax.Array, y0: jax.Array, grid: jax.Array) -> jax.Array:
    return peers.diffrax_solve(field, times, y0, peers.RTOL, peers.ATOL)


def held(times: jax.Array, y0: jax.Array) -> tuple[jax.Array, Callable]:
    """Steps that are settled on some of the trajectories, and node_fit's solve over them."""
    solver, some = nf.Solver(rtol=peers.RTOL, atol=peers.ATOL), y0[:256]
    mlp = peers.jax_mlp(peers.fitted_weights())

    def problem(field: Any, times: jax.Array, y0: jax.Array) -> InitialValueProblem:
        ts = jnp.broadcast_to(times, (len(y0), len(times)))
        return InitialValueProblem(lambda t, y, u: field(y), ts, y0, jnp.zeros((*ts.shape, 0)), ts[:, 0])

    def nodes(shares: np.ndarray | jax.Array, y0: jax.Array) -> jax.Array:
        return jnp.broadcast_to(
            times[0] + jnp.asarray(shares, y0.dtype) * (times[-1] - times[0]), (len(y0), shares.size)
        )

    @jax.jit
    def errors(shares: jax.Array) -> jax.Array:
        return solver.step_errors(problem(mlp, times, some), nodes(shares, some)).max(axis=0)

    first = np.linspace(0, 1, 9)[None]
    shares = settle(lambda grid: np.asarray(errors(grid[0]))[None], first, solver.error_order, solver.max_steps)[0]

    def solve(field: Any, times: jax.Array, y0: jax.Array, grid: jax.Array) -> jax.Array:
        return solver.solve_held(problem(field, times, y0), grid).ys

    return nodes(shares, y0), solve


def torch_functions(ts: np.ndarray, starts: np.ndarray, device: str) -> tuple[Callable, Callable] | None:
    """torchdiffeq's solve and gradient; `None` where it is not installed."""
    try:
        import torch
        from torchdiffeq import odeint
    except ImportError:
        return None
    where = torch.device("cuda" if device == "gpu" else "cpu")
    layers = []
    for weight, bias in peers.fitted_weights():
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight.data, linear.bias.data = torch.tensor(weight), torch.tensor(bias)
        layers += [linear, torch.nn.Tanh()]
    net = torch.nn.Sequential(*layers[:-1]).to(where)
    times, y0 = torch.tensor(ts, device=where), torch.tensor(starts, device=where)

    def wait() -> None:
        if device == "gpu":
            torch.cuda.synchronize()

    def solved() -> Any:
        return odeint(lambda t, y: net(y), y0, times, method="dopri5", rtol=peers.RTOL, atol=peers.ATOL)

    def solve() -> None:
        with torch.no_grad():
            solved()
        wait()

    def gradient() -> None:
        net.zero_grad()
        (solved() ** 2).mean().backward()
        wait()

    return solve, gradient


def timed(run: Callable) -> str:
    """Milliseconds of the fastest call after the first, or why there is none."""
    try:
        run()
        seconds = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - begin)
        return f"{1e3 * min(seconds):.3g}"
    except (jax.errors.JaxRuntimeError, NotImplementedError, RuntimeError, ValueError) as error:
        if "memory" in str(error).lower() or "RESOURCE_EXHAUSTED" in str(error):
            return "out of memory"
        return str(error).splitlines()[0][:60]


if __name__ == "__main__":
    main()
