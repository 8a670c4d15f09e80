"""What `make bench` runs: every figure that the CPU backend and speculation are held to.

A section is a function from `Setup` to `Figure`s; `__main__.py` lists them. Pytest collects only
the tests of what sections are made of. docs/benchmarks/README.md says how to run them and how to
read what comes out.
"""
