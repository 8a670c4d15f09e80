"""GGUF to GGUF in fewer bits: native quantisers, recipes, importance, and the run over a file."""
