"""Writes the HTML pages of `launch.report` and `launch.compare`, with the results of runs."""
