"""The `spec` command: options, printing, exit codes. No arithmetic."""
