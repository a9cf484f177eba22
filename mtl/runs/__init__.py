"""What one does with an experiment: train, evaluate, predict, export, audit."""
