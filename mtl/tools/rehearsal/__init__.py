"""Tries a run for some steps, and tells what a whole training would take."""
