"""`spec convert`: checkpoints to GGUF, and GGUF to GGUF. One file per subcommand."""
