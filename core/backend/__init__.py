"""core/backend."""
