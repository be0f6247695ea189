"""Exports of models: C, functional mock-up units, ONNX, StableHLO, NumPy, formulas."""
