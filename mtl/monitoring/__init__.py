"""Shows and records a run while it trains: progress, TensorBoard, metrics, warnings, summary."""
