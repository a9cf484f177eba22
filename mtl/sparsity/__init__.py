"""Sparsity: weights that are cut while a network trains, and then stay exactly 0."""
