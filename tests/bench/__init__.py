"""What `make bench` runs: every figure that the CPU backend and speculation are held to, llama.cpp beside it.

Pytest collects only the tests of what sections are made of. A section is a function from `Setup` to `Figure`s; `__main__.py` lists
them. docs/benchmarks/README.md says how to run it and how to read what comes out.
"""
