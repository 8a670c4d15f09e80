"""core/backend/reference."""
