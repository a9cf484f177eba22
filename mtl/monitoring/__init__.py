"""Shows and keeps the state of a run while it trains: progress, summaries, checkpoints."""
