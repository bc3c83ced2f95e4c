"""Benchmarks: ratios against peers or the physical limit, taken side by side in one run."""

import os

# Small products are compared beside torch on one thread; more would only get in each other's way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
