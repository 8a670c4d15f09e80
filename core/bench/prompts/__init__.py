"""The built-in prompts: `code` to be continued as text, `chat` to be answered."""
