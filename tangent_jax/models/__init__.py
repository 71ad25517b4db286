"""Models, the subsets of their leaves that are trained, and their outputs."""
