"""Is a GGUF file sound: its numbers, llama.cpp's rules for it, and what it does when it runs."""
