"""Arithmetic on index expressions: ranges, linear forms, proofs, simplification."""
