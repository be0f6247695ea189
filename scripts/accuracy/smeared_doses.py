"""Doses as events, and smeared over the interval between two samples.

    python scripts/accuracy/smeared_doses.py [--noise 0.0005]

Four people swallow five doses each. A drug is absorbed into the plasma, goes over to the tissue and back, and is
eliminated (two compartments with absorption). The script prints the constants that are found if the doses are events,
and if they are an input that is held between samples, which is all that a table of the samples can say.
"""

import argparse
import dataclasses
import functools

import numpy as np
from scipy.linalg import expm

import node_fit as nf

TRUE = {"ka": 1.1, "ke": 0.18, "k12": 0.35, "k21": 0.25, "V": 25.0}
FIRST = {"ka": [0.7, 0, None], "ke": [0.3, 0, None], "k12": [0.2, 0, None], "k21": [0.4, 0, None], "V": [15.0, 0, None]}
EQUATIONS = {
    "plasma": "{gut}/V - (ke + k12)*plasma + k21*tissue",
    "gut": "{rate} - {gut}",
    "tissue": "k12*plasma - k21*tissue",
}
PEOPLE, DOSES, SAMPLES, HOURS, LEAST = 4, 5, 40, 48.0, 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, default=0.0005, help="of each value, relative")
    noise = parser.parse_args().noise
    data, doses = measured(noise)
    sigma = np.hypot(noise * np.abs(data.ys), LEAST)  # as data.sigma={plasma: {relative: ..., absolute: ...}}
    data = dataclasses.replace(data, sigma=np.where(np.isfinite(sigma), sigma, 1.0))
    events = nf.with_events(data, doses)
    found = {"events": fitted(events, "0"), "smeared": fitted(smeared(data, doses), "rate")}
    print("| constant | true | " + " | ".join(f"{name} | error" for name in found) + " |")
    print("|---|---|" + "---|---|" * len(found))
    for name, true in TRUE.items():
        cells = [f"{each[name]:.4g} | {each[name] / true - 1:+.1%}" for each in found.values()]
        print(f"| {name} | {true} | {' | '.join(cells)} |")


def measured(noise: float) -> tuple[nf.Dataset, list[dict]]:
    """Concentrations in the plasma at uneven times, and the doses."""
    rng = np.random.default_rng(0)
    k = TRUE
    rates = np.array([[-k["ke"] - k["k12"], k["ka"] / k["V"], k["k21"]], [0, -k["ka"], 0], [k["k12"], 0, -k["k21"]]])
    ts, ys, doses = [], [], []
    for person in range(PEOPLE):
        given = np.sort(rng.uniform(0.5, 36.0, DOSES)).round(1)
        amounts = rng.choice([50.0, 100.0, 200.0], DOSES)
        times = np.concatenate([[0.0], np.sort(rng.uniform(0.2, HOURS, SAMPLES - 1))])
        found = [state_after(rates, times - at, dose) for at, dose in zip(given, amounts, strict=True)]
        values = np.sum(found, axis=0)[:, 0] * np.exp(noise * rng.standard_normal(SAMPLES))
        ts.append(times)
        ys.append(values[:, None])
        doses += [
            {"trajectory": str(person), "time": at, "state": "gut", "add": dose}
            for at, dose in zip(given.tolist(), amounts.tolist(), strict=True)
        ]
    return nf.Dataset.from_arrays(ts, ys, states=("plasma",)), doses


def state_after(rates: np.ndarray, since: np.ndarray, dose: float) -> np.ndarray:
    """The states at times since a dose, before which there is none."""
    return np.stack([expm(rates * t) @ [0.0, dose, 0.0] if t > 0 else np.zeros(3) for t in since])


def smeared(data: nf.Dataset, doses: list[dict]) -> nf.Dataset:
    """The data with an input: each dose over the length of the interval between two samples that it falls into."""
    us = np.zeros((*data.ts.shape, 1))
    for dose in doses:
        person = int(dose["trajectory"])
        row = int(np.searchsorted(data.ts[person], dose["time"], side="right")) - 1
        us[person, row] += dose["add"] / (data.ts[person, row + 1] - data.ts[person, row])
    return dataclasses.replace(data, us=us, inputs=("rate",))


def fitted(data: nf.Dataset, rate: str) -> dict[str, float]:
    equations = {name: text.format(gut="ka*gut", rate=rate) for name, text in EQUATIONS.items()}
    fit = nf.fit(
        data,
        field=functools.partial(nf.Known, equations=equations, constants=FIRST),
        hidden=("gut", "tissue"),
        solver=nf.Solver(stepping="adaptive", inputs="hold"),
        optimizer=nf.LevenbergMarquardt(),
        training=nf.Training(freeze=("start.hidden",)),
        options=nf.Options(precision="x64"),
    )
    return fit.model.constants()


if __name__ == "__main__":
    main()
