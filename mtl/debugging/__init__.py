"""What went wrong in a step: its tensors, the op that broke it, the rows, and a page of it."""
