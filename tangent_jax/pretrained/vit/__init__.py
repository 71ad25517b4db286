"""The family of Vision Transformers: its files under the names of each program that writes them."""
