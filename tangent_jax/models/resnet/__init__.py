"""The residual network v1.5: its sizes, its plain and tangent pass, and its weights in other libraries' formats."""
