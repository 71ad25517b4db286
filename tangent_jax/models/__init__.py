"""Models as the library knows them, what of them is trained, and their answers."""
