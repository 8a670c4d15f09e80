"""Everything that makes tokens. Never prints, never parses arguments."""
