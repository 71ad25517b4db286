"""The pages that `tangent-jax inspect` writes."""
