"""Neural ordinary differential equations, fitted to time series."""

from . import startup as _startup  # before anything heavy
from .runtime.serialization import __version__ as __version__

if _startup.ASKS_VERSION:
    print(__version__)
    raise SystemExit

from types import ModuleType as _Module  # noqa: I001

from .data.dataset import Dataset as Dataset
from .data.batch import Batch as Batch
from .data.event_rows import with_events as with_events
from .data.scaling import Scaling as Scaling
from .data.splits import Split as Split
from .data.splits import Splits as Splits
from .data.table_source import Table as Table
from .data.tables.reading import from_frame as from_frame
from .data.tables.reading import read_table as read_table
from .fitting.discovery import Discovery as Discovery
from .fitting.discovery import discover as discover
from .export.export import Export as Export
from .export.export import export as export
from .evaluation.metrics import score as score
from .fitting.fit import fit as fit
from .options.options import Devices as Devices
from .options.options import Options as Options
from .options.options import Training as Training
from .fitting.result import Fit as Fit
from .options.recipes import Plan as Plan
from .options.recipes import Recipe as Recipe
from .fitting.fit import fit_several as fit_several
from .model.ensemble import Ensemble as Ensemble
from .model.fields.field import AbstractVectorField as AbstractVectorField
from .model.fields.known import Hybrid as Hybrid
from .model.fields.known import Known as Known
from .model.fields.known import Sparse as Sparse
from .model.fields.network import Linear as Linear
from .model.fields.network import MLP as MLP
from .model.fields.field import Physical as Physical
from .model.fields.network import Polynomial as Polynomial
from .model.fields.network import SecondOrder as SecondOrder
from .model.make_model import make_model as make_model
from .model.neural_ode import NeuralODE as NeuralODE
from .model.rollout import Prediction as Prediction
from .model.observation import LinearReadout as LinearReadout
from .model.observation import MeasuredStates as MeasuredStates
from .model.observation import NetworkReadout as NetworkReadout
from .model.initial_state.trained import Encoder as Encoder
from .model.initial_state.rule import First as First
from .model.initial_state.trained import Fitted as Fitted
from .model.initial_state.stated import Stated as Stated
from .model.initial_state.stated import Steady as Steady
from .model.system import System as System
from .objectives.objective import AbstractObjective as AbstractObjective
from .objectives.objective import Loss as Loss
from .objectives.objective import CustomLoss as CustomLoss
from .optimizers.optimizer import AbstractOptimizer as AbstractOptimizer
from .optimizers.optimizer import Step as Step
from .training.callback import Callback as Callback
from .training.callback import Record as Record
from .training.callback import RunState as RunState
from .training.callback import MLflow as MLflow
from .training.callback import TensorBoard as TensorBoard
from .training.callback import WeightsAndBiases as WeightsAndBiases
from .objectives.derivative import DerivativeMatching as DerivativeMatching
from .objectives.losses import Penalty as Penalty
from .objectives.losses import Huber as Huber
from .objectives.losses import Squares as Squares
from .objectives.losses import StudentT as StudentT
from .objectives.trajectory import MultipleShooting as MultipleShooting
from .objectives.trajectory import TrajectoryMatching as TrajectoryMatching
from .optimizers.gradient import Adam as Adam
from .optimizers.gradient import Optax as Optax
from .optimizers.lbfgs import LBFGS as LBFGS
from .optimizers.levenberg_marquardt import LevenbergMarquardt as LevenbergMarquardt
from .petab.fitting import PEtabFit as PEtabFit
from .petab.fitting import fit_petab as fit_petab
from .petab.model_table import SBML as SBML
from .petab.objective import Objective as Objective
from .petab.objective import objective as objective
from .petab.sbml import read_sbml as read_sbml
from .petab.tables import PEtab as PEtab
from .petab.tables import read_petab as read_petab
from .solver.solver import Solver as Solver
from .storage.model_file import load as load
from .storage.model_file import save as save
from .training.members import Members as Members
from .training.stage import Stage as Stage

__all__ = [name for name, value in vars().items() if not name.startswith("_") and not isinstance(value, _Module)]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
