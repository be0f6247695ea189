"""Optimizers: the methods that minimise an objective."""
