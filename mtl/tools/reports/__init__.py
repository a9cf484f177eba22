"""Writes the results of one or several runs as one HTML file, for `launch.report` and `compare`."""
