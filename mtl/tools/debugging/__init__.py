"""Finds the op and the rows that broke a training step, and writes a page about the step."""
