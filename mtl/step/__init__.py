"""One training step in the graph: its loop, parts of a batch, state, draws and summaries."""
