"""Families of checkpoints: one row each, and a file for what a family has of its own."""

from .checkpoint_rows import FAMILIES, find_family

__all__ = ["FAMILIES", "find_family"]
