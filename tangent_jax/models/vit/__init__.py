"""The Vision Transformer: sizes, the plain and the tangent pass, and its weights as other libraries store them."""
