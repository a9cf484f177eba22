"""Writes the results of one or several runs to a page for mail: `launch.report`, `compare`."""
