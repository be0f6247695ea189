"""Measurements: tables, datasets, splits, scaling, smoothing, batches."""
