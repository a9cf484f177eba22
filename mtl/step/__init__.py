"""One training step in the graph: its loop, the parts of its batch, state, draws and summaries."""
