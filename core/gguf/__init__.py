"""GGUF files: reading with validation, writing, quantised formats."""
