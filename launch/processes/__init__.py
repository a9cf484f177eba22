"""The process of a command: its start, flags that nobody knows, streams, logs and exit codes."""
