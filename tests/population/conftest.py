"""A population with a known likelihood: decays from 10, whose rate is log-normal, measured twice each."""

import functools
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

import node_fit
from node_fit.population.fit import build_population
from node_fit.population.likelihood import Population

RATE, VARIANCE, NOISE = 0.5, 0.04, 0.3


@dataclass
class Decays:
    """Two measurements of each of several subjects, of `10 e^(-k t)` with proportional noise."""

    ts: np.ndarray
    ys: np.ndarray
    data: node_fit.Dataset
    population: Population
    x: np.ndarray

    def parts(self, theta: float, interaction: bool, subject: int):
        y, rate = self.ys[subject], np.exp(theta)

        def predict(effect: float) -> np.ndarray:
            return 10 * np.exp(-rate * np.exp(effect) * self.ts)

        def half_misfit(effect: float) -> float:
            variance = (NOISE * predict(effect if interaction else 0.0)) ** 2
            return 0.5 * (np.sum((y - predict(effect)) ** 2 / variance + np.log(variance)) + effect**2 / VARIANCE)

        return predict, half_misfit, rate

    def closed_form(self, theta: float, method: str) -> float:
        """The objective, written out for one effect."""
        total = 0.0
        for subject in range(len(self.ys)):
            interaction = method in ("focei", "exact")
            predict, half_misfit, rate = self.parts(theta, interaction, subject)
            if method == "exact":
                integral = quad(lambda effect: np.exp(-half_misfit(effect)), -1.5, 1.5, epsabs=0, epsrel=1e-11)[0]  # noqa: B023
                total -= 2 * np.log(integral / np.sqrt(2 * np.pi * VARIANCE))
                continue
            effect = 0.0 if method == "fo" else minimize_scalar(half_misfit, bracket=(-0.3, 0.3), tol=1e-13).x
            f = predict(effect)
            slope = -f * rate * np.exp(effect) * self.ts
            variance = (NOISE * predict(effect if interaction else 0.0)) ** 2
            if method == "fo":
                covariance = VARIANCE * np.outer(slope, slope) + np.diag(variance)
                off = self.ys[subject] - f
                total += np.linalg.slogdet(covariance)[1] + off @ np.linalg.solve(covariance, off)
                continue
            curvature = np.sum(slope**2 / variance) + 1 / VARIANCE
            curvature += 0.5 * np.sum((2 * slope / f) ** 2) if interaction else 0.0
            total += 2 * half_misfit(effect) + np.log(VARIANCE) + np.log(curvature)
        return total


@pytest.fixture(scope="package")
def decays() -> Decays:
    rng = np.random.default_rng(1)
    ts = np.array([0.0, 1.0])
    rates = RATE * np.exp(np.sqrt(VARIANCE) * rng.standard_normal(8))
    ys = 10 * np.exp(-rates[:, None] * ts) * (1 + NOISE * rng.standard_normal((8, 2)))
    data = node_fit.Dataset.from_arrays(ts, ys[..., None], states=["y"])
    field = functools.partial(node_fit.Known, equations={"y": "-k*y"}, constants={"k": RATE})
    start = functools.partial(node_fit.Stated, values={"y": 10})
    options = node_fit.Options(field=field, start=start, solver=node_fit.Solver(rtol=1e-9), precision="x64")
    settings = node_fit.MixedEffects(noise={"y": {"proportional": NOISE}})
    random = {"k": {"kind": "lognormal", "variance": VARIANCE}}
    population = build_population(data, random, settings, options)
    x = np.array([np.log(RATE), 0.5 * np.log(VARIANCE), np.log(NOISE)])
    return Decays(ts, ys, data, population.refine_steps(x, population.still), x)
