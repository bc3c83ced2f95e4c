"""What runs tasks: Ray, Dask, or threads of this process."""
