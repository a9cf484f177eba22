"""Pruning: sets weights to 0 while a network trains; pruned weights stay exactly 0."""
