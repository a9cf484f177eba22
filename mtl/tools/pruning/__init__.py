"""Prunes finished runs, either once or in rounds (lottery tickets)."""
