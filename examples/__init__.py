"""Example programs: `python -m examples.demo`."""
