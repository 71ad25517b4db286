"""Training a step of any function: losses, the objective, optimisers, batches, one model or many at once."""
