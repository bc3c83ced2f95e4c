"""Benchmarks: ratios against peers or the physical limit, taken side by side in one run."""
