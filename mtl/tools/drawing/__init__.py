"""Draws pictures of a run from the scalars that the run has written."""
