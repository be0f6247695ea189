"""Faults, injected for real: signals to processes, damaged files, full and shut disks."""
