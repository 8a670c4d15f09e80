"""Benchmarks: prompts, paired runs, statistics, gates. Never prints, never parses arguments."""
