"""Vector fields: the right-hand sides `dy/dt = f(t, y, u)` that can be fitted."""

from .field import AbstractVectorField as AbstractVectorField
from .linear import Linear as Linear
from .mlp import MLP as MLP
