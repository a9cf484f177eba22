"""Balances tasks that share a network: `weighting` scales losses, `surgery` combines gradients."""
