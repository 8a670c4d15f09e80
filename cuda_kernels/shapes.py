"""Launchers check what they are given: a wrong shape is a sentence, not a crash on the device."""

from __future__ import annotations

from .kernel import Array


def require_shape(name: str, array: Array, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        found = tuple(array.shape)
        raise ValueError(f"{name}: shape {found}, expected {shape}")


def matrix_shape(name: str, array: Array) -> tuple[int, int]:
    if len(array.shape) != 2:
        raise ValueError(f"{name}: shape {tuple(array.shape)}, expected two dimensions")
    return int(array.shape[0]), int(array.shape[1])
