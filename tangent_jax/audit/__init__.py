"""Audits of private training: canaries, attacks, and the epsilon that they prove; membership inference."""
