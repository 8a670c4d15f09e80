"""The CPU backend: kernels written in LLVM through llvmlite, walked by our own threads."""
