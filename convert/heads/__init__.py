"""MTP heads of checkpoints under their GGUF names: one file per family, and a table of them."""
