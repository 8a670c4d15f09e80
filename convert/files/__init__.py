"""GGUF to GGUF: heads attached, extracted and detached, shards merged and split."""
