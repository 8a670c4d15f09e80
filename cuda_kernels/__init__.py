"""CUDA sources and the Python that launches them."""
