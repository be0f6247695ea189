"""Analysis of a fitted model near a point: equilibria, modes, step and frequency responses."""
