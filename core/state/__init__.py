"""core/state."""
