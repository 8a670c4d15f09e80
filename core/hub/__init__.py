"""The Hugging Face hub: its files over HTTP, its cache on this machine, GGUF models in it."""
