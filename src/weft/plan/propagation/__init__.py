"""Propagation: the shardings that follow from those a person wrote."""
