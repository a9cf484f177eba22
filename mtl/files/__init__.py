"""Finds files, writes files atomically, and verifies the content of files."""
