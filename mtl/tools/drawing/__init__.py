"""Draws the scalars of a run as pictures."""
