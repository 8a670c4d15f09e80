"""Every CUDA kernel by itself on a GPU: time, bytes per second, and a right answer."""
