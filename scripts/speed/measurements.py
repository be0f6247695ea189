"""Single measurements of `scripts/speed/compare_with_peers.py`, each in a process of its own.

    python scripts/speed/measurements.py '{"task": "gradients", "contender": "loop", "trajectories": 32, ...}'

prints one JSON document. A callback measures node_fit, through `node_fit.fit` alone.
"""

import argparse
import importlib
import json
import os
import statistics
import time
from functools import partial
from typing import Any

import peers

# Each block of steps is one chunk in node_fit, and is timed as a whole.
BLOCK, BLOCKS = 50, 4
WIDTH = 32  # width of the spiral's field


def gradients(contender: str, trajectories: int, threads: int, started: float) -> dict[str, Any]:
    """Seconds per training step with Adam on the first trajectories of the oscillator."""
    measure = gradients_of_node_fit if contender == "node_fit" else partial(gradients_of_peer, contender, threads)
    for package in peers.NEEDS.get(contender, ("node_fit",)):
        importlib.import_module(package)
    imported = time.time() - started
    ts, ys = peers.oscillator()
    return {"import_seconds": imported, **measure(ts, ys[:trajectories])}


def gradients_of_node_fit(ts: peers.Times, ys: peers.States) -> dict[str, Any]:
    import jax
    from chunk_times import Watch

    import node_fit

    jax.config.update("jax_num_cpu_devices", os.cpu_count())  # As the command does.
    watch = Watch()
    result = fit_oscillator(ts, ys, node_fit.Adam(peers.GRADIENT_RATE, schedule="constant"), BLOCK * BLOCKS, watch)
    return {
        "step_seconds": statistics.median(watch.chunks) / BLOCK,
        "compile_seconds": result.compile_seconds,
        "loss": min(record.train_loss for record in result.history),
    }


def fit_oscillator(ts: peers.Times, ys: peers.States, optimizer: Any, steps: int, watch: Any):
    """node_fit on the peers' problem: the same weights and tolerances, no scaling, no derivative matching."""
    import equinox as eqx
    import jax

    import node_fit

    field = node_fit.MLP(2, width=peers.SIZES[1], depth=len(peers.SIZES) - 2, key=jax.random.key(0))
    leaves = [jax.numpy.asarray(leaf) for layer in peers.fitted_weights() for leaf in layer]
    field = eqx.tree_at(
        lambda f: [leaf for layer in f.network.layers for leaf in (layer.weight, layer.bias)], field, leaves
    )
    return node_fit.fit(
        node_fit.Dataset.from_arrays(ts, ys),
        field=field,
        optimizer=optimizer,
        solver=node_fit.Solver(rtol=peers.RTOL, atol=peers.ATOL),
        training=node_fit.Training(steps=steps, chunk_steps=BLOCK),
        callbacks=[watch],
        options=node_fit.Options(
            recipe="direct", penalty=node_fit.Penalty(), scaling=node_fit.Scaling(affine=False), precision="x32"
        ),
    )


def gradients_of_peer(peer: str, threads: int, ts: peers.Times, ys: peers.States) -> dict[str, Any]:
    step = peers.PEERS[peer](ts, ys, threads)
    begin = time.perf_counter()
    losses = [step()]
    first = time.perf_counter() - begin
    seconds = []
    for _ in range(BLOCKS):
        begin = time.perf_counter()
        losses += [step() for _ in range(BLOCK)]
        seconds.append(time.perf_counter() - begin)
    row = {"step_seconds": statistics.median(seconds) / BLOCK, "loss": min(losses[:-1])}
    return {**row, "compile_seconds": first - row["step_seconds"]} if peer == "loop" else row


def compilation(contender: str) -> dict[str, Any]:
    """Seconds to trace, lower and compile a training chunk of an optimizer on 32 trajectories of the oscillator."""
    import optax
    from chunk_times import Watch

    import node_fit

    optimizers = {
        "Adam": node_fit.Adam,
        "LBFGS": node_fit.LBFGS,
        "Optax(lbfgs)": lambda: node_fit.Optax(optax.lbfgs(memory_size=50)),
    }
    ts, ys = peers.oscillator()
    # With any optimizer, the first program of a process also pays for what JAX loads lazily.
    fit_oscillator(ts[:2], ys[:2, :2], node_fit.Adam(), 1, Watch())
    result = fit_oscillator(ts, ys[:32], optimizers[contender](), 1, Watch())
    return {"compile_seconds": result.compile_seconds}


def target(contender: str, nrmse: float, seed: int, limit: float, started: float) -> dict[str, Any]:
    """Seconds from the start of the process to a validation error on the oscillator."""
    reach = node_fit_to_target if contender == "node_fit" else peers.loop_to_target
    at, steps, error = reach(nrmse, seed, limit)
    return {"seconds": at - started, "steps": steps, "nrmse": error, "reached": error <= nrmse}


def node_fit_to_target(target: float, seed: int, limit: float) -> peers.Reached:
    """`node_fit.fit` with its defaults, stopped once the validation NRMSE is at most `target`."""
    from chunk_times import Watch

    import node_fit
    from node_fit.data.scaling import Scaler

    table = node_fit.read_table(
        str(peers.DATA / "oscillator.csv"), time="t", states=["x", "y"], trajectory="trajectory"
    )
    parts = node_fit.Split(by="trajectory", validation=0.1, test=0.1)(table)
    assert parts.validation is not None
    # Losses are in units of the training data's scale. With the least favourable channel, a loss below this bound
    # means an NRMSE below the target.
    scale = Scaler.from_dataset(parts.train).state_scale / parts.validation.ys.std(axis=(0, 1))
    watch = Watch(validation_loss=float(target**2 / (scale**2).max()), limit=limit)
    result = node_fit.fit(
        parts.train,
        validation=parts.validation,
        callbacks=[watch],
        options=node_fit.Options(precision="x32", device="cpu", seed=seed),
    )
    return peers.Reached(watch.at, result.steps, result.score(parts.validation).nrmse)


def spiral(contender: str, loss: float, seed: int, limit: float) -> dict[str, Any]:
    """Seconds after compiling to a training loss on the spiral in float64; the loss is in scaled units."""
    from chunk_times import Watch

    import node_fit

    name, recipe = contender.split(", ")
    optimizer = node_fit.LBFGS() if name == "LBFGS" else node_fit.Adam(schedule="constant")
    watch = Watch(train_loss=loss, limit=limit)
    result = node_fit.fit(
        node_fit.read_table(str(peers.DATA / "spiral.csv"), time="t", states=["x", "y"], trajectory="trajectory"),
        field=partial(node_fit.MLP, width=WIDTH),
        optimizer=optimizer,
        solver=node_fit.Solver(rtol=1e-6),
        training=node_fit.Training(steps=1_000_000),
        callbacks=[watch],
        options=node_fit.Options(
            recipe="direct" if recipe == "direct" else "default", precision="x64", device="cpu", seed=seed
        ),
    )
    return {
        "seconds": sum(watch.chunks),
        "compile_seconds": result.compile_seconds,
        "steps": result.steps,
        "loss": min(record.train_loss for record in result.history if record.stage == "main"),
        "reached": watch.reached_at is not None,
    }


TASKS = {"gradients": gradients, "compile": compilation, "target": target, "spiral": spiral}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("request", type=json.loads, help="the task and its arguments, in JSON")
    request = parser.parse_args().request
    print(json.dumps(TASKS[request.pop("task")](**request)))
