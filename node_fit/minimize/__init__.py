"""Searches for least squares: compiled, on the host, and from where they start."""
