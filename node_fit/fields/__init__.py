"""Vector fields: the right-hand sides `dy/dt = f(t, y, u)` that can be fitted."""

from .constants import Constants as Constants
from .equations import Equations as Equations
from .field import AbstractVectorField as AbstractVectorField
from .field import VectorField as VectorField
from .hybrid import Hybrid as Hybrid
from .known import Known as Known
from .linear import Linear as Linear
from .mlp import MLP as MLP
from .physical import Physical as Physical
from .second_order import SecondOrder as SecondOrder
