"""The optimum of the convex problem: solved, certified, and what follows from it for examples, sums and predictions."""
