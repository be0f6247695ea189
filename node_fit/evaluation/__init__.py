"""Metrics, baselines and simulated splits."""
