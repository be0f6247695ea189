"""Mechanisms from columns: errors on records left out, and constants beside the true ones.

    python scripts/accuracy/mechanisms.py                    # the search alone, seconds for each
    python scripts/accuracy/mechanisms.py --fit --only cart  # whole fits by the columns alone
    python scripts/accuracy/mechanisms.py --fit --networks   # and those of networks

Five mechanisms are simulated by their energies, which JAX differentiates: each five records of 500 rows under smooth
random forces, four to fit and one left out. Encoders count positions in 4,096 steps of a turn, and velocities have
noise of 1 % of their spread. Errors are those of positions in the second (100 rows) after ten known rows, as a share
of their spread.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import node_fit
from node_fit.mechanics.identify import find_mechanism
from node_fit.mechanics.pairing import pair_velocities

RECORDS, ROWS, STEP, SUBSTEPS, AHEAD, KNOWN = 5, 500, 0.01, 10, 100, 10
COUNT, VELOCITY_NOISE, GRAVITY = 2 * np.pi / 4096, 0.01, 9.81


class Simulated(NamedTuple):
    """A mechanism by its energies, for `(q, v)`: friction `(v)`, and the sizes of forces; `lumps` are true
    constants."""

    kinetic: Callable
    potential: Callable
    friction: Callable
    forces: tuple[float, ...]
    coordinates: int
    lumps: dict[str, float]


def oscillator() -> Simulated:
    return Simulated(
        lambda q, v: 0.5 * 1.2 * v[0] ** 2,
        lambda q: 0.5 * 40.0 * q[0] ** 2,
        lambda v: jnp.array([0.4 * v[0] + 1.5 * jnp.tanh(v[0] / 0.02)]),
        (12.0,),
        1,
        {"m1": 1.2, "k1": 40.0, "d1": 0.4, "f1": 1.5},
    )


def cart() -> Simulated:
    """A pendulum on a cart; the angle is 0 where it hangs."""
    m, big, length = 0.3, 1.0, 0.5
    return Simulated(
        lambda q, v: (
            0.5 * big * v[0] ** 2
            + 0.5 * m * ((v[0] + length * jnp.cos(q[1]) * v[1]) ** 2 + (length * jnp.sin(q[1]) * v[1]) ** 2)
        ),
        lambda q: -m * GRAVITY * length * jnp.cos(q[1]),
        lambda v: jnp.array([2.0 * v[0], 0.01 * v[1]]),
        (12.0,),
        2,
        {"m1": big + m, "m2": m * length**2, "m3": m * length, "g1": m * GRAVITY * length, "d1": 2.0, "d2": 0.01},
    )


def belt() -> Simulated:
    """Two pulleys with an elastic belt; a motor drives the first."""
    return Simulated(
        lambda q, v: 0.5 * 0.02 * v[0] ** 2 + 0.5 * 0.05 * v[1] ** 2,
        lambda q: 0.5 * 8.0 * (q[0] - q[1]) ** 2,
        lambda v: (
            jnp.array([0.02 * v[0] + 0.05 * jnp.tanh(v[0] / 0.05), 0.03 * v[1]])
            + 0.01 * jnp.array([v[0] - v[1], v[1] - v[0]])
        ),
        (1.0,),
        2,
        {"m1": 0.02, "m3": 0.05, "k": 8.0},
    )


def chain(links: int) -> Simulated:
    """Links of which each hangs from the one before; the angles are relative."""
    mass, length = jnp.array([2.0, 1.2, 0.7])[:links], jnp.array([0.5, 0.4, 0.3])[:links]

    def kinetic(q, v):
        angle, rate = jnp.cumsum(q), jnp.cumsum(v)
        ends = jnp.stack([length * jnp.cos(angle) * rate, length * jnp.sin(angle) * rate], axis=1)
        before = jnp.cumsum(ends, axis=0) - ends
        middle = before + ends / 2
        return 0.5 * jnp.sum(mass * jnp.sum(middle**2, axis=1) + mass * length**2 / 12 * rate**2)

    def potential(q):
        down = length * jnp.cos(jnp.cumsum(q))
        return -GRAVITY * jnp.sum(mass * (jnp.cumsum(down) - down / 2))

    viscous, dry = jnp.array([0.3, 0.15, 0.05])[:links], jnp.array([0.4, 0.2, 0.1])[:links]
    g = [float(GRAVITY * (mass[at] * length[at] / 2 + length[at] * mass[at + 1 :].sum())) for at in range(links)]
    return Simulated(
        kinetic,
        potential,
        lambda v: viscous * v + dry * jnp.tanh(v / 0.05),
        (6.0, 2.0, 0.4)[:links],
        links,
        {f"g{at + 1}": each for at, each in enumerate(g)} | {f"d{at + 1}": float(viscous[at]) for at in range(links)},
    )


MECHANISMS = {
    "oscillator": oscillator,
    "cart": cart,
    "belt": belt,
    "two links": lambda: chain(2),
    "three links": lambda: chain(3),
}


def simulate(made: Simulated, seed: int) -> list[np.ndarray]:
    """Records `(row, time, positions, velocities, forces)` with the noise of encoders."""
    draw, n, m = np.random.default_rng(seed), made.coordinates, len(made.forces)

    def slope(x, u):
        q, v = x[:n], x[n:]
        mass = jax.hessian(made.kinetic, argnums=1)(q, v)
        momentum = lambda q: jax.grad(made.kinetic, argnums=1)(q, v)  # noqa: E731
        rest = jax.grad(made.kinetic)(q, v) - jax.grad(made.potential)(q) - made.friction(v)
        return jnp.concatenate([v, jnp.linalg.solve(mass, u + rest - jax.jacfwd(momentum)(q) @ v)])

    h = STEP / SUBSTEPS

    def run(start, force):
        def step(x, t):
            k1 = slope(x, force(t))
            k2 = slope(x + h / 2 * k1, force(t + h / 2))
            k3 = slope(x + h / 2 * k2, force(t + h / 2))
            return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + slope(x + h * k3, force(t + h))), x

        return jax.lax.scan(step, start, h * jnp.arange(ROWS * SUBSTEPS))[1][::SUBSTEPS]

    def make(start, rates, phases, sizes):
        def force(t):
            given = (jnp.sin(2 * jnp.pi * rates * t + phases) * sizes).sum(-1) * jnp.array(made.forces)
            return jnp.zeros(n).at[:m].set(given)

        return run(start, force), jax.vmap(force)(STEP * jnp.arange(ROWS))[:, :m]

    make, found = jax.jit(make), []
    for _ in range(RECORDS):
        waves = (
            draw.uniform(0.2, 2.0, (m, 6)),
            draw.uniform(0, 2 * np.pi, (m, 6)),
            draw.normal(size=(m, 6)) / np.sqrt(3),
        )
        start = np.concatenate([draw.normal(size=n) * 0.3, np.zeros(n)])
        x, u = make(start, *waves)
        found.append((np.arange(ROWS) * STEP, np.asarray(x), np.asarray(u)))
    noise = VELOCITY_NOISE * np.concatenate([x[:, n:] for _, x, _ in found]).std(axis=0)
    return [
        np.column_stack([t, np.round(x[:, :n] / COUNT) * COUNT, x[:, n:] + noise * draw.normal(size=(ROWS, n)), u])
        for t, x, u in found
    ]


def dataset(made: Simulated, records: list[np.ndarray]) -> node_fit.Dataset:
    n = made.coordinates
    states = [f"q{at + 1}" for at in range(n)] + [f"v{at + 1}" for at in range(n)]
    return node_fit.Dataset.from_arrays(
        np.stack([each[:, 0] for each in records]),
        np.stack([each[:, 1 : 2 * n + 1] for each in records]),
        np.stack([each[:, 2 * n + 1 :] for each in records]),
        states=states,
        inputs=[f"u{at + 1}" for at in range(len(made.forces))],
    )


def ahead_error(model: node_fit.NeuralODE, data: node_fit.Dataset, n: int) -> float:
    """Error of positions a second ahead of ten rows that are known, as a share of their spread."""
    windows = data.windows(KNOWN + AHEAD, AHEAD)
    known = np.arange(windows.ys.shape[1])[:, None] < KNOWN
    predicted = model.predict(dataclasses.replace(windows, ys=np.where(known, windows.ys, np.nan)))
    gap = (predicted - windows.ys)[:, KNOWN:, :n]
    return float(np.sqrt(np.nanmean((gap / np.std(data.ys[..., :n], axis=(0, 1))) ** 2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--fit", action="store_true", help="whole fits")
    parser.add_argument("--networks", action="store_true", help="and fits of networks")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for name, make in MECHANISMS.items():
        if arguments.only not in name:
            continue
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            made = make()
            records = simulate(made, seed)
            train, held = dataset(made, records[:-1]), dataset(made, records[-1:])
            begin = time.perf_counter()
            pairing = pair_velocities(train)
            assert pairing is not None
            found = find_mechanism(train, pairing, held=[False] * len(train.inputs))
            constants = found.constants
            print(f"{name}, seed {seed}: {found.mechanism.title}, {time.perf_counter() - begin:.1f} s")
            print(
                "   ",
                {key: float(f"{value:.4g}") for key, value in zip(constants, found.values, strict=True)},
                "true",
                made.lumps,
                flush=True,
            )
            if arguments.fit:
                for label, options in {
                    "columns": {},
                    **({"networks": {"options": node_fit.Options(discover=False)}} if arguments.networks else {}),
                }.items():
                    begin = time.perf_counter()
                    fit = node_fit.fit(train, validation=None, progress=False, **options)
                    error = ahead_error(fit.model, held, made.coordinates)
                    print(
                        f"    {label}: {error:.4f}, {time.perf_counter() - begin:.0f} s, {fit.diagnose().kind}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
