"""The Vision Transformer: sizes, plain, tangent, and how others name and store its weights."""
