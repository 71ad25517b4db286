"""The residual network v1.5: sizes, plain, tangent, and how others name and store its weights."""
