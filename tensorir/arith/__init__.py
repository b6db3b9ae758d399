"""What is known about index expressions: ranges, linear forms, proofs."""
