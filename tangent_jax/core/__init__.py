"""What all packages stand on, without files: checks of values, trees, notation, names and identities of programs."""
