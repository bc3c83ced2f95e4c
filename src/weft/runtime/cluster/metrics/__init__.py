"""Measurements of cluster runs: meters, records, calibration and export."""
