"""Coarser levels of an image, made while its frames arrive."""
