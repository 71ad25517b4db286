"""Code that commands share, and experiments with them; nothing here defines a flag when it is imported."""
