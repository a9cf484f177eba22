"""Sparsity: weights that are cut while a network trains, and stay 0 to the bit."""
