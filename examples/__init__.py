"""Programs that run as they are: `python -m examples.demo`."""
