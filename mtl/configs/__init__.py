"""Gin files as experiments: read, checked, written, compared, and how far they are trusted."""
