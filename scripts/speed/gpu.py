"""Seconds of gradients, of a fit's main stage and of an ensemble, on a GPU and on the CPU beside it.

    python scripts/speed/gpu.py [--only gradients record lorenz memory] [--trajectories 1 100 1000 10000]
        [--devices gpu cpu]

prints four tables in Markdown:

- `gradients`: of the problem of `peers.py`: trajectories of the oscillator from starts that are drawn, 100 times each,
  an MLP 2-64-64-2, float32, rtol 1e-3 and atol 1e-6. Contenders: `sequential` and `parallel`, node_fit's two marches
  over held steps that meet the tolerances, one row of them for all, the second beginning at the data; `diffrax`, a
  vmapped solve whose trajectories choose their steps; and `torchdiffeq`, if it is installed, whose trajectories share
  their steps. Where memory does not suffice, it says so.
- `record`: training steps of the main stage on a driven record, of 65,000 rows or `--rows`, whole and in windows.
- `memory`: what the compiled program of a gradient needs beside its arguments and results, as XLA counts it, over steps
  of one trajectory and over trajectories. Nothing is run.
- `lorenz`: solves of 8,192 systems of Lorenz (rho from 0 to 21), over 1,000 equal steps and at rtol 1e-6.
"""

import argparse
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import chunk_times
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import peers

import node_fit as nf
from node_fit.solver.held_steps import settle
from node_fit.solver.problem import InitialValueProblem

REPEATS = 5
SECTIONS = ("gradients", "record", "lorenz", "memory")
CONTENDERS = ("sequential", "parallel", "diffrax", "torchdiffeq")
MEMORY_SIZES = ((1, 10_000), (1, 100_000), (1, 1_000_000), (100, 1_000), (10_000, 100), (100_000, 100))
SPACING, WINDOW = 0.1, 200
CHUNKS, CHUNK = 3, 5
SYSTEMS, EQUAL_STEPS = 8_192, 1_000
Run = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--trajectories", nargs="+", type=int, default=[1, 10, 100, 1000, 10_000])
    parser.add_argument("--devices", nargs="+", choices=("gpu", "cpu"), default=("gpu", "cpu"))
    parser.add_argument("--rows", type=int, default=65_000, help="of the record")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    given = parser.parse_args()
    # JAX's default on a GPU rounds factors to ten bits, so coarse that steps never seem to meet these tolerances.
    jax.config.update("jax_default_matmul_precision", "highest")
    if "gradients" in given.only:
        print("| trajectories | device | contender | solve [ms] | gradient [ms] |\n|---|---|---|---|---|")
        for count in given.trajectories:
            for device in given.devices:
                for name, solve, gradient in contenders(count, device, given.contenders):
                    print(f"| {count:,} | {device} | {name} | {timed(solve)} | {timed(gradient)} |", flush=True)
    if "lorenz" in given.only:
        print("\n| systems of Lorenz | device | steps | solve [ms] |\n|---|---|---|---|")
        for device in given.devices:
            for name, solve in ensembles(device):
                print(f"| {SYSTEMS:,} | {device} | {name} | {timed(solve)} |", flush=True)
    if "memory" in given.only:
        print("\n| trajectories | steps of each | device | march | temporaries of a gradient [MB] |")
        print("|---|---|---|---|---|")
        for device, (count, steps) in itertools.product(given.devices, MEMORY_SIZES):
            for march in ("sequential", "parallel"):
                size = gradient_memory(device, march, count, steps)
                print(f"| {count:,} | {steps:,} | {device} | {march} | {size / 1e6:,.0f} |", flush=True)
    if "record" in given.only:
        print(f"\n| record of {given.rows:,} rows | device | march | training step [ms] | peak memory [MB] |")
        print("|---|---|---|---|---|")
        for window in (WINDOW, None):
            kind = "whole" if window is None else f"windows of {window}"
            for device in given.devices:
                for march in ("sequential", "parallel") if device == "gpu" else ("sequential",):
                    step = main_stage(device, march, window, given.rows)
                    print(f"| {kind} | {device} | {march} | {step:.3g} | {peak_memory(device)} |", flush=True)


def contenders(count: int, device: str, names: Sequence[str]) -> Iterator[tuple[str, Run, Run]]:
    """A name, and functions that wait for a solve and for a gradient."""
    ts, ys = peers.oscillator()
    draws = np.random.default_rng(0).integers(len(ys), size=count)
    measured = ys[draws] * np.linspace(0.9, 1.1, count, dtype=np.float32)[:, None, None]
    on = jax.devices(device)[0]
    weights, rest = eqx.partition(peers.jax_mlp(peers.fitted_weights()), eqx.is_array)
    field = eqx.combine(jax.device_put(weights, on), rest)
    times, data = jax.device_put((jnp.asarray(ts), jnp.asarray(measured)), on)
    shares = held_shares(times, data)
    solvers = {name: held(name, shares) for name in ("sequential", "parallel")} | {"diffrax": adaptive}
    for name in names:
        if name in solvers:
            yield name, *compiled(solvers[name], field, times, data)
        elif found := torch_functions(ts, measured[:, 0], device):
            yield name, *found


def compiled(solve: Callable, *arguments: Any) -> tuple[Run, Run]:
    forward = eqx.filter_jit(solve)
    backward = eqx.filter_jit(eqx.filter_grad(lambda field, *rest: jnp.mean(solve(field, *rest) ** 2)))

    return tuple(lambda f=f: jax.block_until_ready(f(*arguments)) for f in (forward, backward))  # pyright: ignore[reportReturnType]


def adaptive(field: Any, times: jax.Array, data: jax.Array) -> jax.Array:
    return peers.diffrax_solve(field, times, data[:, 0], peers.RTOL, peers.ATOL)


def problem_of(field: Any, times: jax.Array, data: jax.Array) -> InitialValueProblem:
    ts = jnp.broadcast_to(times, data.shape[:2])
    rates = lambda t, y, u: field(y)  # noqa: E731
    return InitialValueProblem(rates, ts, data[:, 0], jnp.zeros((*ts.shape, 0)), ts[:, 0], guess=data)


def nodes(shares: np.ndarray | jax.Array, times: jax.Array, count: int) -> jax.Array:
    return jnp.broadcast_to(times[0] + jnp.asarray(shares, times.dtype) * (times[-1] - times[0]), (count, shares.size))


def held_shares(times: jax.Array, data: jax.Array) -> Any:
    """Steps that are settled on some of the trajectories."""
    solver, mlp, some = nf.Solver(rtol=peers.RTOL, atol=peers.ATOL), peers.jax_mlp(peers.fitted_weights()), data[:256]

    @jax.jit
    def errors(shares: jax.Array) -> jax.Array:
        return solver.step_errors(problem_of(mlp, times, some), nodes(shares, times, len(some))).max(axis=0)

    first = np.linspace(0, 1, 9)[None]
    return settle(lambda grid: np.asarray(errors(grid[0]))[None], first, solver.error_order, solver.max_steps)[0]


def held(march: Any, shares: np.ndarray) -> Callable:
    """node_fit's solve over held steps."""
    solver = nf.Solver(rtol=peers.RTOL, atol=peers.ATOL, march=march)

    def solve(field: Any, times: jax.Array, data: jax.Array) -> jax.Array:
        return solver.solve_held(problem_of(field, times, data), nodes(shares, times, len(data))).ys

    return solve


def gradient_memory(device: str, march: Any, count: int, steps: int) -> int:
    """Bytes of temporary arrays in the program of a gradient over so many steps, each from row to row."""
    on = jax.devices(device)[0]
    weights, rest = eqx.partition(peers.jax_mlp(peers.fitted_weights()), eqx.is_array)
    solver = nf.Solver(rtol=peers.RTOL, atol=peers.ATOL, march=march)

    def loss(weights: Any, times: jax.Array, data: jax.Array) -> jax.Array:
        problem = problem_of(eqx.combine(weights, rest), times, data)
        return jnp.mean(solver.solve_held(problem, jnp.array([[0.0, 1.0]]), between_rows=True).ys ** 2)

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((steps + 1,), (count, steps + 1, 2))]
    with jax.default_device(on):
        program = jax.jit(jax.grad(loss)).lower(weights, *shapes).compile()
    analysis = program.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def torch_functions(ts: np.ndarray, starts: np.ndarray, device: str) -> tuple[Run, Run] | None:
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


def ensembles(device: str) -> Iterator[tuple[str, Run]]:
    """Solves of Lorenz systems: 1,000 equal steps, and adaptive ones."""
    on = jax.devices(device)[0]
    rho = jax.device_put(jnp.linspace(0, 21, SYSTEMS, dtype=jnp.float32), on)

    def rates(t: jax.Array, y: jax.Array, u: jax.Array) -> jax.Array:
        (x, y, z), (rho,) = y, u
        return jnp.stack([10 * (y - x), x * (rho - z) - y, x * y - 8 / 3 * z])

    def problem(rho: jax.Array) -> InitialValueProblem:
        ts = jnp.broadcast_to(jnp.array([0.0, 1.0]), (SYSTEMS, 2))
        y0 = jnp.broadcast_to(jnp.array([1.0, 0.0, 0.0]), (SYSTEMS, 3))
        return InitialValueProblem(rates, ts, y0, jnp.broadcast_to(rho[:, None, None], (SYSTEMS, 2, 1)), ts[:, 0])

    def solver(march: Any) -> nf.Solver:
        return nf.Solver(rtol=1e-6, atol=1e-6, inputs="hold", march=march)

    def equal(rho: jax.Array) -> jax.Array:
        nodes = jnp.linspace(0, 1, EQUAL_STEPS + 1)[None]
        return solver("sequential").solve_held(problem(rho), nodes, between_rows=True).ys[:, -1]

    def adaptive(rho: jax.Array) -> jax.Array:
        return solver("sequential").forecast(problem(rho)).ys[:, -1]

    for name, solve in ((f"{EQUAL_STEPS:,} equal steps", jax.jit(equal)), ("adaptive steps", jax.jit(adaptive))):
        yield name, lambda solve=solve: jax.block_until_ready(solve(rho))


def main_stage(device: str, march: Any, window: int | None, rows: int) -> float:
    """Milliseconds of a training step on a damped pendulum under random pushes, of the fastest chunk."""
    rng = np.random.default_rng(0)
    push = np.repeat(rng.normal(0, 1, rows // 10 + 1), 10)[:rows]
    states = np.zeros((rows, 2))
    for row in range(1, rows):
        angle, speed = states[row - 1]
        speed = speed + SPACING * (push[row - 1] - np.sin(angle) - 0.3 * speed)
        states[row] = angle + SPACING * speed, speed
    train = nf.Dataset.from_arrays(SPACING * np.arange(rows), states + rng.normal(0, 0.01, states.shape), push[:, None])
    watch = chunk_times.Watch()
    options = nf.Options(
        field=functools.partial(nf.MLP, width=32),
        recipe="direct",
        device=device,
        optimizer="adam",
        solver=nf.Solver("heun", stepping="even", max_steps=2**21, march=march),
        training=nf.Training(steps=CHUNKS * CHUNK, chunk_steps=CHUNK, window=window),
    )
    nf.fit(train, options=options, callbacks=[watch], progress=False)
    return 1e3 * min(watch.chunks[1:]) / CHUNK


def peak_memory(device: str) -> str:
    """Megabytes that this process has had on the device so far, where it counts them."""
    counted = jax.devices(device)[0].memory_stats() or {}
    return f"{counted['peak_bytes_in_use'] / 1e6:,.0f}" if "peak_bytes_in_use" in counted else "-"


def timed(run: Run) -> str:
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
