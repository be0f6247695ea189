"""Metrics, baselines, diagnosis and simulated splits."""
