"""Explains a broken step: its tensors, the op and the rows that broke it, and a page on it."""
