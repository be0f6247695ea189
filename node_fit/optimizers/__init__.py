"""How an objective is minimised."""

from .adam import Adam as Adam
from .custom import Optax as Optax
from .lbfgs import LBFGS as LBFGS
from .levenberg_marquardt import LevenbergMarquardt as LevenbergMarquardt
from .optimizer import AbstractGradientOptimizer as AbstractGradientOptimizer
from .optimizer import AbstractOptimizer as AbstractOptimizer
from .optimizer import Step as Step
