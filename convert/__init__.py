"""Other formats to GGUF, and GGUF to GGUF."""
