"""Facts of index expressions: ranges, linear forms, proofs."""
