"""HTTP over the engine. Never prints, never parses arguments; `cli/serve.py` does both."""
