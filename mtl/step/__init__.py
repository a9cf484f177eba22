"""Builds a training step: the loop over steps, micro-batches, state, random draws and summaries."""
