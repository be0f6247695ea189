"""Times one training step of a neural ODE in the peers of node_fit, on the CPU in float32.

    python scripts/benchmark_peers.py [--peers loop torchdiffeq torchode] [--batches 32 256] [--repeats 50]

prints one JSON document. Every row of `results` is measured in a process of its own, so that imports and the first
step are counted afresh. The peers solve the same problem: the trajectories of `data/oscillator.csv` from their first
row, an MLP 2-64-64-2 with tanh, the same starting weights and batches, a fifth-order method with rtol 1e-3 and atol
1e-6, gradients through the solver's steps, Adam at 3e-3. Their first losses therefore agree, within the tolerances.

- `loop`: Equinox, Diffrax and Optax in a plain Python loop, with one jitted step and a vmapped Tsit5 solve, in the
  manner of Diffrax's neural ODE tutorial (which has softplus and AdaBelief).
- `torchdiffeq`: `odeint` with dopri5; the batch is one system with common steps.
- `torchode`: dopri5 with a step size for each trajectory, run eagerly.

A row gives `import_seconds` (from the start of the process to the end of the imports), `first_step_seconds`,
`step_seconds` (median of a gradient and its update), `fastest_step_seconds` and `slowest_step_seconds`,
`compile_seconds` (first step less a median step; only where something is compiled) and `first_loss`. A peer that is
not installed has `skipped`, one that fails `failed`. Measure on an idle machine: `load` is its load average at the
start, and a median far from the fastest step says that something else was running.

The weights are near their start, where the field is slow and smooth; a trained field takes more steps in every peer.

PyTorch gets one thread unless `--torch-threads` says otherwise: on two cores shared with other work, a step at 256
took 0.04 s with one thread and up to 1 s with two, which wait for each other. On an idle machine, try both.
"""

import argparse
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

DATA = Path(__file__).parents[1] / "data" / "oscillator.csv"
SIZES = (2, 64, 64, 2)
LEARNING_RATE = 3e-3
RTOL, ATOL = 1e-3, 1e-6

Batch = Float[np.ndarray, "trajectory time 2"]
Step = Callable[[Batch], float]


def oscillator() -> tuple[Float[np.ndarray, " time"], Float[np.ndarray, "trajectory time 2"]]:
    """Times and states of the shipped oscillator, float32."""
    columns = np.loadtxt(DATA, delimiter=",", skiprows=1, dtype=np.float32)
    trajectories = len(np.unique(columns[:, 0]))
    table = columns.reshape(trajectories, -1, 4)
    return table[0, :, 1], table[:, :, 2:]


def starting_weights() -> list[tuple[Float[np.ndarray, "out in"], Float[np.ndarray, " out"]]]:
    """Weight and bias of each layer, uniform within 1 / sqrt(inputs), as both Equinox and PyTorch draw them."""
    rng = np.random.default_rng(0)
    layers = []
    for inputs, outputs in itertools.pairwise(SIZES):
        draw = rng.uniform(-1, 1, (outputs, inputs + 1)) / np.sqrt(inputs)
        layers.append((draw[:, :-1].astype(np.float32), draw[:, -1].astype(np.float32)))
    return layers


def batches(ys: Float[np.ndarray, "all time 2"], size: int) -> Iterator[Batch]:
    """Endless batches of `size` trajectories without replacement, the same for every peer."""
    rng = np.random.default_rng(1)
    while True:
        yield ys[rng.permutation(len(ys))[:size]]


def loop(ts: Float[np.ndarray, " time"], threads: int) -> Step:
    """A plain Python loop with Diffrax; XLA chooses its own threads."""
    import diffrax
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import optax

    layers = starting_weights()
    mlp = eqx.nn.MLP(2, 2, SIZES[1], len(SIZES) - 2, activation=jnp.tanh, key=jax.random.key(0))
    mlp = eqx.tree_at(
        lambda m: [leaf for layer in m.layers for leaf in (layer.weight, layer.bias)],
        mlp,
        [jnp.asarray(leaf) for layer in layers for leaf in layer],
    )
    optimizer = optax.adam(LEARNING_RATE)
    times = jnp.asarray(ts)
    state = optimizer.init(eqx.filter(mlp, eqx.is_inexact_array))

    def solve(model, start):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: model(y)),
            diffrax.Tsit5(),
            t0=times[0],
            t1=times[-1],
            dt0=times[1] - times[0],
            y0=start,
            saveat=diffrax.SaveAt(ts=times),
            stepsize_controller=diffrax.PIDController(rtol=RTOL, atol=ATOL),
        )
        return solution.ys

    @eqx.filter_value_and_grad
    def loss_and_gradient(model, ys):
        predicted = jax.vmap(lambda start: solve(model, start))(ys[:, 0])
        return jnp.mean((predicted - ys) ** 2)

    @eqx.filter_jit
    def update(model, state, ys):
        loss, gradient = loss_and_gradient(model, ys)
        change, state = optimizer.update(gradient, state)
        return loss, eqx.apply_updates(model, change), state

    def step(ys: Batch) -> float:
        nonlocal mlp, state
        loss, mlp, state = jax.block_until_ready(update(mlp, state, jnp.asarray(ys)))
        return float(loss)

    return step


def torch_step(threads: int, solve: Callable[[Any, Any], Any]) -> Step:
    """A PyTorch training step around `solve(mlp, starts)`, which returns `(trajectory, time, state)`."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(threads)
    modules: list[torch.nn.Module] = []
    for weight, bias in starting_weights():
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
        modules += [layer, torch.nn.Tanh()]
    mlp = torch.nn.Sequential(*modules[:-1])
    optimizer = torch.optim.Adam(mlp.parameters(), lr=LEARNING_RATE)

    def step(ys: Batch) -> float:
        observed = torch.from_numpy(ys)
        optimizer.zero_grad()
        loss = torch.mean((solve(mlp, observed[:, 0]) - observed) ** 2)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def torchdiffeq(ts: Float[np.ndarray, " time"], threads: int) -> Step:
    """`torchdiffeq.odeint`, differentiated through its steps."""
    import torch  # pyright: ignore[reportMissingImports]
    from torchdiffeq import odeint  # pyright: ignore[reportMissingImports]

    times = torch.from_numpy(ts)

    def solve(mlp, starts):
        ys = odeint(lambda t, y: mlp(y), starts, times, rtol=RTOL, atol=ATOL, method="dopri5")
        assert isinstance(ys, torch.Tensor)
        return ys.transpose(0, 1)

    return torch_step(threads, solve)


def torchode(ts: Float[np.ndarray, " time"], threads: int) -> Step:
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

    return torch_step(threads, solve)


PEERS: dict[str, Callable[[Float[np.ndarray, " time"], int], Step]] = {
    "loop": loop,
    "torchdiffeq": torchdiffeq,
    "torchode": torchode,
}
NEEDS = {
    "loop": ("diffrax", "equinox", "jax", "optax"),
    "torchdiffeq": ("torch", "torchdiffeq"),
    "torchode": ("torch", "torchode"),
}
COMPILED = {"loop"}


def measure(peer: str, size: int, repeats: int, threads: int, started: float) -> dict[str, Any]:
    """One row, measured in this process; `started` is when the process was asked for, in `time.time()`."""
    for package in NEEDS[peer]:
        importlib.import_module(package)
    imported = time.time() - started
    ts, ys = oscillator()
    step = PEERS[peer](ts, threads)
    seconds, losses = [], []
    for _, batch in zip(range(repeats + 1), batches(ys, size), strict=False):
        begin = time.perf_counter()
        losses.append(step(batch))
        seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds[1:])
    row = {
        "import_seconds": imported,
        "first_step_seconds": seconds[0],
        "step_seconds": median,
        "fastest_step_seconds": min(seconds[1:]),
        "slowest_step_seconds": max(seconds[1:]),
        "first_loss": losses[0],
    }
    if peer in COMPILED:
        row["compile_seconds"] = seconds[0] - median
    return row


def measure_apart(peer: str, size: int, repeats: int, threads: int) -> dict[str, Any]:
    """One row, measured in a new process."""
    missing = [package for package in NEEDS[peer] if importlib.util.find_spec(package) is None]
    if missing:
        return {"skipped": f"{', '.join(missing)} not installed"}
    command = [sys.executable, __file__, "--here", "--peers", peer, "--batches", str(size)]
    command += ["--repeats", str(repeats), "--torch-threads", str(threads)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run([*command, "--started", repr(time.time())], capture_output=True, text=True, env=environment)
    if ran.returncode:
        return {"failed": (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]}
    return json.loads(ran.stdout.splitlines()[-1])


def versions() -> dict[str, str]:
    """Versions of the peers' packages that are installed."""
    found = {}
    for package in sorted({package for needs in NEEDS.values() for package in needs}):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def compare(peers: list[str], sizes: list[int], repeats: int, threads: int) -> dict[str, Any]:
    """The whole document: the machine, the versions, and a row for each peer and batch size."""
    load = os.getloadavg()[0]
    results = []
    for peer in peers:
        for size in sizes:
            row = {"peer": peer, "trajectories": size, **measure_apart(peer, size, repeats, threads)}
            print(", ".join(f"{key} {value}" for key, value in row.items()), file=sys.stderr, flush=True)
            results.append(row)
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    settings = {"load": load, "repeats": repeats, "torch_threads": threads}
    return {**machine, "versions": versions(), **settings, "results": results}


def main() -> None:
    parser = argparse.ArgumentParser(description="Times a training step of the peers of node_fit on the CPU.")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), help="which to measure (all)")
    parser.add_argument("--batches", nargs="+", type=int, default=[32, 256], help="trajectories in a step (32 256)")
    parser.add_argument("--repeats", type=int, default=50, help="timed steps after the first (50)")
    parser.add_argument("--torch-threads", type=int, default=1, help="threads of PyTorch (1)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name, numbers in (
        ("batches", options.batches),
        ("repeats", [options.repeats]),
        ("torch-threads", [options.torch_threads]),
    ):
        if min(numbers) < 1:
            parser.error(f"--{name} must be at least 1, got {min(numbers)}.")
    trajectories = len(oscillator()[1])
    if max(options.batches) > trajectories:
        parser.error(
            f"--batches must be at most {trajectories}, the trajectories in {DATA}, got {max(options.batches)}."
        )
    counts = options.repeats, options.torch_threads
    if options.here:
        print(json.dumps(measure(options.peers[0], options.batches[0], *counts, options.started)))
    else:
        print(json.dumps(compare(options.peers, options.batches, *counts), indent=2))


if __name__ == "__main__":
    main()
