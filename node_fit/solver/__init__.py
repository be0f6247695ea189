"""Solving a vector field: adaptive or held steps, and the inputs between rows."""
