"""The part of jaxlib from which JAX takes its class of devices."""

from typing import Any

from ._jax import Device as Device

def __getattr__(name: str) -> Any: ...
