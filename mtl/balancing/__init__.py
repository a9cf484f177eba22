"""Balances tasks on a shared network: `weighting` scales losses, `surgery` combines gradients."""
