"""Kernels of the operators that Weft ships: each computes one box, on arrays of any library."""
