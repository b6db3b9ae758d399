"""Algorithms: other ways to compute what was declared, which ``s.redeclare`` puts in its place."""
