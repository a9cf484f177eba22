"""Runs a training for some steps, and estimates the time and the memory of the whole training."""
