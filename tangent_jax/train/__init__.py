"""Training dw of any function: losses, the objective, optimisers, batches, for one model or many at once."""
