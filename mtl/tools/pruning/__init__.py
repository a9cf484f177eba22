"""Prunes finished runs, once or in rounds (lottery tickets)."""
