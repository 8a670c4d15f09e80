"""Whose text it is. What one owner wrote is not drafted for another, except from a corpus."""

from __future__ import annotations


def owner_name(key: str, salt: str) -> str:
    """Of a request: by its API key, and within that by its salt."""
    return f"{key}\0{salt}" if salt else key


def is_private(owner: str) -> bool:
    """Whether the request has a salt: its text stays out of files that others draft from."""
    return "\0" in owner
