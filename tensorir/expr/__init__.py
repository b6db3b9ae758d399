"""The language of declarations: placeholders, computes, reductions, and the programs they make."""
