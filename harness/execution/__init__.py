"""How cells are run: one isolated child each, watched from outside, and what is said when it does not answer."""
