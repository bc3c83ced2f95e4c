"""Coarser levels of an image, computed while its frames arrive."""
