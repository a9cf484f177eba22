"""Explains a broken step: finds the op and the rows that broke it, and writes a page about it."""
