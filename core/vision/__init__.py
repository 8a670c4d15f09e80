"""Images to rows that stand in a prompt: files, towers, and what joins both to a model."""
