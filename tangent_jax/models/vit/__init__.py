"""The Vision Transformer: its sizes, its plain and tangent pass, and its weights in other libraries' formats."""
