"""The residual network v1.5: sizes, the plain and the tangent pass, and its weights as other libraries store them."""
