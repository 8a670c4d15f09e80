"""A whole step on a GPU: how fast it is, and what it moves and launches without one."""
