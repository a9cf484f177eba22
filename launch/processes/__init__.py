"""Handles the process of a command: imports, unknown flags, streams, logs and exit codes."""
