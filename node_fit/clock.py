"""When the package began to load; the command reports how long that took."""

import time

BEGAN = time.perf_counter()
