"""Components, tangent weights that leave training: their sums, their provenance, their store, their removal."""
