"""Covariance of a fit's constants by linear algebra, where some directions may not be determined."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from ..data.bounds import from_line, slope
from ..training.linearised import Found
from .evidence import Evidence, Place, Unsure

# A constant whose share in a direction is larger is moved by it.
MOVED = 1e-3
# The penalties decide on a constant whose standard error grows by more than this factor if they count this much.
GROWS, WEAKER = 3.0, 1e-6


@dataclass(frozen=True)
class Information:
    """What the data say of the constants, all other trained parameters being free (Seber and Wild, Nonlinear
    Regression, 1989, sections 2.1 and 5.1; with a prior, the Laplace approximation).

    Covariances and directions are those of the constants on the real line (`data/bounds.py`), in units of their own
    size: of a positive constant, those of its logarithm.

    **Arguments:**

    - `evidence`: of the fit.
    - `share`: how much the prior and other penalties count. `noise`: the variance of a weighted residual, if known.
    - `found`: the sum of squares, by default that at the fit.
    """

    evidence: Evidence
    share: float = 1.0
    noise: float | None = None
    found: Found | None = None

    @property
    def linearised(self) -> Found:
        return self.evidence.best if self.found is None else self.found

    @property
    def places(self) -> list[Place]:
        return self.evidence.constants

    @cached_property
    def tolerance(self) -> float:
        """Singular values below this share of the largest are rounding errors."""
        return float(np.finfo(self.evidence.stage.kind).eps) ** (2 / 3)

    @cached_property
    def jacobian(self) -> Float[np.ndarray, "row parameter"]:
        """The Jacobian of measurements and penalties."""
        found, width = self.linearised, self.evidence.mask.shape[1]
        if self.share == 1.0 or found.residuals.shape[1] == width:
            return found.jacobian
        weight = np.where(np.arange(found.residuals.shape[1]) < width, 1.0, np.sqrt(self.share))
        return found.jacobian * np.tile(weight, len(found.residuals))[:, None]

    @property
    def prior(self) -> Float[np.ndarray, " parameter"]:
        return self.share * self.linearised.prior

    @cached_property
    def columns(self) -> Float[np.ndarray, " parameter"]:
        """The norms of the Jacobian's columns, by which they are divided."""
        norms = np.sqrt((self.jacobian**2).sum(axis=0) + self.prior)
        return np.where(norms > 0, norms, 1.0)

    @cached_property
    def root(self) -> Float[np.ndarray, "row parameter"]:
        """`R` of the QR decomposition of the scaled Jacobian, with a row for each parameter's prior."""
        whole = self.jacobian
        if self.prior.any():
            whole = np.concatenate([whole, np.diag(np.sqrt(self.prior))])
        return np.asarray(np.linalg.qr(whole / self.columns, mode="r"))

    @cached_property
    def spectrum(self) -> tuple[Float[np.ndarray, " rank"], Float[np.ndarray, "rank parameter"]]:
        """Singular values of `root` above rounding, and their right singular vectors."""
        _, values, vectors = np.linalg.svd(self.root, full_matrices=False)
        kept = values > self.tolerance * values.max(initial=0)
        return values[kept], vectors[kept]

    @cached_property
    def parameters(self) -> float:
        """The effective number of parameters: their number, less what a prior or a penalty determines."""
        found, (values, vectors) = self.evidence.best, self.spectrum
        if not found.prior.any() and found.residuals.shape[1] == self.evidence.mask.shape[1]:
            return float(len(values))
        measured = found.jacobian[self.evidence.informative] / self.columns
        return float((((measured @ vectors.T) / values) ** 2).sum())

    @property
    def degrees_of_freedom(self) -> float:
        return self.evidence.values - self.parameters

    @cached_property
    def variance(self) -> float:
        """The variance of a weighted residual: of the noise that was given, or as the residuals say.

        **Raises:** `Unsure` if there are too few residuals.
        """
        if self.noise is not None:
            return self.noise
        if self.evidence.noise == "given":
            return self.evidence.unit**2
        if self.degrees_of_freedom < 1:
            count = f"{self.parameters:.3g} parameters were fitted to {self.evidence.values} values"
            raise Unsure(f"{count}, which leaves nothing to estimate the noise from; give data.sigma.")
        return self.evidence.squares(self.evidence.best) / self.degrees_of_freedom

    @cached_property
    def sizes(self) -> Float[np.ndarray, " constant"]:
        """How far a trained parameter moves when its constant moves by its own size."""
        lines = [self.evidence.x[each.index] * each.scale for each in self.places]
        values = [float(from_line(np.asarray(z), each.bounds)) for z, each in zip(lines, self.places, strict=True)]
        return np.array(
            [
                float(slope(np.asarray(value), each.bounds)) * (abs(value) or 1.0) / each.scale
                for value, each in zip(values, self.places, strict=True)
            ]
        )

    @cached_property
    def own(self) -> Float[np.ndarray, "row constant"]:
        """The part of `root` that only the constants explain, in units of their sizes."""
        index = [each.index for each in self.places]
        others = np.delete(self.root, index, axis=1)
        mine = self.root[:, index] * (self.columns[index] * self.sizes)
        if not others.size:
            return mine
        basis, values, _ = np.linalg.svd(others, full_matrices=False)
        basis = basis[:, values > self.tolerance * values.max(initial=0)]
        return mine - basis @ (basis.T @ mine)

    @cached_property
    def directions(self) -> tuple[Float[np.ndarray, " constant"], Float[np.ndarray, "constant constant"]]:
        """Standard errors along orthogonal directions of the constants, infinite where nothing is known; in rows."""
        if not self.places:
            return np.zeros(0), np.zeros((0, 0))
        alone = (
            np.linalg.norm(self.root[:, [each.index for each in self.places]], axis=0)
            * self.columns[[each.index for each in self.places]]
            * self.sizes
        )
        _, values, vectors = np.linalg.svd(self.own, full_matrices=True)
        values = np.concatenate([values, np.zeros(len(vectors) - len(values))])
        noise = self.tolerance * np.maximum(np.abs(vectors) @ alone, np.finfo(float).tiny)
        with np.errstate(divide="ignore"):
            errors = np.where(values > noise, np.sqrt(self.variance) / values, np.inf)
        return errors, vectors

    @cached_property
    def covariance(self) -> Float[np.ndarray, "constant constant"]:
        """The covariance of the constants; infinite variances, and NaN beside them, where nothing is known."""
        errors, vectors = self.directions
        known = np.isfinite(errors)
        scaled = vectors[known] * errors[known, None]
        found = scaled.T @ scaled
        lost = self.moved(vectors[~known]).any(axis=0)
        found[lost] = found[:, lost] = np.nan
        found[lost, lost] = np.inf
        return found

    @staticmethod
    def moved(vectors: Float[np.ndarray, "direction constant"]) -> Bool[np.ndarray, "direction constant"]:
        """Which constants a direction moves."""
        return np.abs(vectors) > MOVED

    @cached_property
    def errors(self) -> Float[np.ndarray, " constant"]:
        """Standard errors of the constants, in units of their sizes."""
        return np.sqrt(np.diag(self.covariance))

    @cached_property
    def penalised(self) -> Bool[np.ndarray, " constant"]:
        """Constants that are only determined by the penalties, which weigh them against what is fitted beside them."""
        found = self.evidence.best
        if not found.prior.any() and found.residuals.shape[1] == self.evidence.mask.shape[1]:
            return np.zeros(len(self.places), bool)
        here = replace(self, noise=self.variance)
        widening, redrawn = np.isfinite(self.errors) & here.widening, self.evidence.redrawn
        # A strong prior makes a network so small that it no longer bends: then it seems to make up for nothing.
        return widening if redrawn is None else widening | replace(here, found=redrawn).widening

    @property
    def widening(self) -> Bool[np.ndarray, " constant"]:
        """Constants whose standard error is much larger under weaker penalties."""
        return replace(self, share=WEAKER * self.share).errors > GROWS * self.errors

    @property
    def known(self) -> Bool[np.ndarray, " constant"]:
        """Constants that the measurements determine."""
        return np.isfinite(self.errors) & ~self.penalised

    @cached_property
    def step(self) -> Float[np.ndarray, " parameter"]:
        """The Gauss-Newton step from the fit's parameters to the optimum of the linearised sum of squares."""
        found, (values, vectors) = self.evidence.best, self.spectrum
        slope = found.jacobian.T @ found.residuals.reshape(-1) + found.prior * self.evidence.x
        return -(vectors.T @ ((vectors @ (slope / self.columns)) / values**2)) / self.columns

    @cached_property
    def distance(self) -> float:
        """How far the fit is from that optimum, in standard errors of the constant that is farthest."""
        index = [each.index for each in self.places]
        finite = self.known & (self.errors > 0)
        moved = np.abs(self.step[index] / self.sizes)[finite] / self.errors[finite]
        return float(moved.max(initial=0.0))
