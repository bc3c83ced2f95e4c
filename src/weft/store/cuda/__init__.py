"""The store on a GPU: the same stages by CUDA kernels, through CuPy."""
