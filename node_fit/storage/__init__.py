"""Archives, model files and checkpoints, each complete or absent."""
