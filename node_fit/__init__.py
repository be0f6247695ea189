"""Neural ordinary differential equations, fitted to time series."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from .runtime.serialization import __version__ as __version__

if TYPE_CHECKING:
    from .analysis.equilibria import HopfPoint, find_equilibria, find_hopf_points
    from .analysis.linearization import Linearization, linearize_near
    from .data.batch import Batch
    from .data.cycles import find_cycles
    from .data.dataset import Dataset, Split, Splits, from_frame, from_xarray, read_table
    from .data.delays import find_delays
    from .data.nonmem import NONMEM
    from .data.scaling import Scaling
    from .data.table_source import Table, with_events
    from .ecosystem.regressor import Regressor
    from .evaluation.metrics import score
    from .export.export import Export, export
    from .fitting.discovery import Discovery, discover
    from .fitting.fit import fit, fit_several
    from .fitting.result import Fit
    from .likelihood.losses import Huber, Laplace, NegativeBinomial, Poisson, Squares, StudentT
    from .model.ensemble import Ensemble
    from .model.fields.field import AbstractVectorField, Physical
    from .model.fields.known import Hybrid, Known, Mechanical, Sparse
    from .model.fields.network import MLP, Linear, LogTimeMLP, Polynomial, SecondOrder
    from .model.initial_state.rule import First, Stated, Steady
    from .model.initial_state.trained import Encoder, Fitted
    from .model.make_model import make_model
    from .model.neural_ode import NeuralODE
    from .model.observation import DirectReadout, FormulaReadout, LinearReadout, MeasuredStates, NetworkReadout
    from .model.rollout import Prediction
    from .model.system import System
    from .objectives.matching import DerivativeMatching, MultipleShooting, TrajectoryMatching
    from .objectives.objective import AbstractObjective, CustomLoss, Loss, Penalty
    from .optimizers.gradient import LBFGS, Adam, Optax
    from .optimizers.levenberg_marquardt import LevenbergMarquardt
    from .optimizers.optimizer import AbstractOptimizer, Step
    from .options.options import Devices, Options, Training
    from .options.recipes import Plan, Recipe
    from .petab.fitting import PEtabFit, fit_petab
    from .petab.objective import Objective, objective
    from .petab.sbml import read_sbml
    from .petab.sources import SBML, PEtab, with_loss, with_networks
    from .petab.tables import read_petab
    from .population.fit import MixedEffects, PopulationFit, fit_population
    from .population.prediction import predict_subjects
    from .population.storage import read_population
    from .sample.sampling import Posterior, sample
    from .solver.solver import Solver
    from .storage.model_file import load, save
    from .sysid.sensor_ranges import find_ranges
    from .training.callback import Callback, MLflow, Record, RunState, TensorBoard, WeightsAndBiases
    from .training.task import Members, Stage

# The public names.
__all__ = [
    "LBFGS",
    "MLP",
    "NONMEM",
    "SBML",
    "AbstractObjective",
    "AbstractOptimizer",
    "AbstractVectorField",
    "Adam",
    "Batch",
    "Callback",
    "CustomLoss",
    "Dataset",
    "DerivativeMatching",
    "Devices",
    "DirectReadout",
    "Discovery",
    "Encoder",
    "Ensemble",
    "Export",
    "First",
    "Fit",
    "Fitted",
    "FormulaReadout",
    "HopfPoint",
    "Huber",
    "Hybrid",
    "Known",
    "Laplace",
    "LevenbergMarquardt",
    "Linear",
    "LinearReadout",
    "Linearization",
    "LogTimeMLP",
    "Loss",
    "MLflow",
    "MeasuredStates",
    "Mechanical",
    "Members",
    "MixedEffects",
    "MultipleShooting",
    "NegativeBinomial",
    "NetworkReadout",
    "NeuralODE",
    "Objective",
    "Optax",
    "Options",
    "PEtab",
    "PEtabFit",
    "Penalty",
    "Physical",
    "Plan",
    "Poisson",
    "Polynomial",
    "PopulationFit",
    "Posterior",
    "Prediction",
    "Recipe",
    "Record",
    "Regressor",
    "RunState",
    "Scaling",
    "SecondOrder",
    "Solver",
    "Sparse",
    "Split",
    "Splits",
    "Squares",
    "Stage",
    "Stated",
    "Steady",
    "Step",
    "StudentT",
    "System",
    "Table",
    "TensorBoard",
    "Training",
    "TrajectoryMatching",
    "WeightsAndBiases",
    "discover",
    "export",
    "find_cycles",
    "find_delays",
    "find_equilibria",
    "find_hopf_points",
    "find_ranges",
    "fit",
    "fit_petab",
    "fit_population",
    "fit_several",
    "from_frame",
    "from_xarray",
    "linearize_near",
    "load",
    "make_model",
    "objective",
    "predict_subjects",
    "read_petab",
    "read_population",
    "read_sbml",
    "read_table",
    "sample",
    "save",
    "score",
    "with_events",
    "with_loss",
    "with_networks",
]

# The modules of the public names, imported on first use.
_HOMES = {
    "discover": "fitting.discovery",
    "export": "export.export",
    "find_cycles": "data.cycles",
    "find_delays": "data.delays",
    "find_equilibria": "analysis.equilibria",
    "find_hopf_points": "analysis.equilibria",
    "find_ranges": "sysid.sensor_ranges",
    "fit": "fitting.fit",
    "fit_petab": "petab.fitting",
    "fit_population": "population.fit",
    "fit_several": "fitting.fit",
    "from_frame": "data.dataset",
    "from_xarray": "data.dataset",
    "linearize_near": "analysis.linearization",
    "load": "storage.model_file",
    "make_model": "model.make_model",
    "objective": "petab.objective",
    "predict_subjects": "population.prediction",
    "read_petab": "petab.tables",
    "read_population": "population.storage",
    "read_sbml": "petab.sbml",
    "read_table": "data.dataset",
    "sample": "sample.sampling",
    "save": "storage.model_file",
    "score": "evaluation.metrics",
    "with_events": "data.table_source",
    "with_loss": "petab.sources",
    "with_networks": "petab.sources",
    "AbstractObjective": "objectives.objective",
    "AbstractOptimizer": "optimizers.optimizer",
    "AbstractVectorField": "model.fields.field",
    "Adam": "optimizers.gradient",
    "Batch": "data.batch",
    "Callback": "training.callback",
    "CustomLoss": "objectives.objective",
    "Dataset": "data.dataset",
    "DerivativeMatching": "objectives.matching",
    "Devices": "options.options",
    "DirectReadout": "model.observation",
    "Discovery": "fitting.discovery",
    "Encoder": "model.initial_state.trained",
    "Ensemble": "model.ensemble",
    "Export": "export.export",
    "First": "model.initial_state.rule",
    "Fit": "fitting.result",
    "Fitted": "model.initial_state.trained",
    "FormulaReadout": "model.observation",
    "HopfPoint": "analysis.equilibria",
    "Huber": "likelihood.losses",
    "Laplace": "likelihood.losses",
    "Hybrid": "model.fields.known",
    "Known": "model.fields.known",
    "LBFGS": "optimizers.gradient",
    "LevenbergMarquardt": "optimizers.levenberg_marquardt",
    "Linear": "model.fields.network",
    "LogTimeMLP": "model.fields.network",
    "LinearReadout": "model.observation",
    "Linearization": "analysis.linearization",
    "Loss": "objectives.objective",
    "MLP": "model.fields.network",
    "MLflow": "training.callback",
    "MeasuredStates": "model.observation",
    "Mechanical": "model.fields.known",
    "Members": "training.task",
    "MixedEffects": "population.fit",
    "MultipleShooting": "objectives.matching",
    "NONMEM": "data.nonmem",
    "NegativeBinomial": "likelihood.losses",
    "NetworkReadout": "model.observation",
    "NeuralODE": "model.neural_ode",
    "Objective": "petab.objective",
    "Optax": "optimizers.gradient",
    "Options": "options.options",
    "PEtab": "petab.sources",
    "PEtabFit": "petab.fitting",
    "Penalty": "objectives.objective",
    "Physical": "model.fields.field",
    "Plan": "options.recipes",
    "Poisson": "likelihood.losses",
    "Polynomial": "model.fields.network",
    "PopulationFit": "population.fit",
    "Posterior": "sample.sampling",
    "Prediction": "model.rollout",
    "Recipe": "options.recipes",
    "Record": "training.callback",
    "Regressor": "ecosystem.regressor",
    "RunState": "training.callback",
    "SBML": "petab.sources",
    "Scaling": "data.scaling",
    "SecondOrder": "model.fields.network",
    "Solver": "solver.solver",
    "Sparse": "model.fields.known",
    "Split": "data.dataset",
    "Splits": "data.dataset",
    "Squares": "likelihood.losses",
    "Stage": "training.task",
    "Stated": "model.initial_state.rule",
    "Steady": "model.initial_state.rule",
    "Step": "optimizers.optimizer",
    "StudentT": "likelihood.losses",
    "System": "model.system",
    "Table": "data.table_source",
    "TensorBoard": "training.callback",
    "Training": "options.options",
    "TrajectoryMatching": "objectives.matching",
    "WeightsAndBiases": "training.callback",
}


class _Package(ModuleType):
    """The package; keeps `export`, `discover` and `sample` as functions, although folders have the same names."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):  # set by Python when it imports a submodule
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value  # cache for later lookups
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
