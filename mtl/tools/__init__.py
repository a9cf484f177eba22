"""Tools look at a run, or act beside it; training, evaluation and export work without them."""
