"""Neural ordinary differential equations, fitted to time series."""

from .clock import BEGAN as BEGAN
from .dataset import Dataset as Dataset
from .fields import MLP as MLP
from .fields import AbstractVectorField as AbstractVectorField
from .fields import Linear as Linear
from .fitting import Fit as Fit
from .fitting import fit as fit
from .model import NeuralODE as NeuralODE
from .model_file import load as load
from .objectives import DerivativeMatching as DerivativeMatching
from .objectives import TrajectoryMatching as TrajectoryMatching
from .optimizers import LBFGS as LBFGS
from .optimizers import Adam as Adam
from .optimizers import Optax as Optax
from .solver import Solver as Solver
from .sources import Table as Table
from .splits import Split as Split
from .splits import Splits as Splits
from .tables import from_frame as from_frame
from .tables import read_table as read_table
from .training import Stage as Stage
