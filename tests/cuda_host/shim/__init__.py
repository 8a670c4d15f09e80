"""Runs the CUDA sources on the CPU, one fiber per CUDA thread."""
