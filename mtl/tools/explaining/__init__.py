"""Explains the tasks of a trained model: importance, attributions, dependence, gradients."""
