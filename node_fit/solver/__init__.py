"""Solvers: adaptive and held steps, and inputs between rows."""
