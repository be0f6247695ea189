"""Models for other places: C, functional mock-up units, ONNX, StableHLO, NumPy, formulas."""
