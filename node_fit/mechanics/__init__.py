"""Mechanisms: equations of motion whose constants are masses, gravity, springs and friction."""
