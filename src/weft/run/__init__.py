"""Running programs: kernels on boxes, cell by cell."""
