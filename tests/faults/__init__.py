"""Real injected faults: signals to processes, damaged files, and full or read-only disks."""
