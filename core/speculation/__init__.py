"""Guessing what a text says next: one file per speculator, and how they are joined and chosen."""
