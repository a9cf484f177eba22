"""Turns gradients into new weights: schedules, clipping, regularisation, optimizers, the update."""
