"""Finds files by name, writes them completely or not at all, and verifies their content."""
