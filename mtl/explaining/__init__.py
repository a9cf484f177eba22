"""What a trained model looks at, task by task: importance, attributions, dependence, gradients."""
