"""The same work as a user of other libraries would write it; each file runs alone."""
