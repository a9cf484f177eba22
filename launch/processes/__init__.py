"""The process of a command: imports, unknown flags, standard streams, logs and exit codes."""
