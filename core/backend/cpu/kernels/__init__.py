"""The kernels, written with `emit.py`: each a function `(arguments, part, parts)`."""
