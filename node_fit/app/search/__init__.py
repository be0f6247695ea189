"""The search over config keys."""
