"""Explains a trained model by task: importance, attributions, dependence, gradients."""
