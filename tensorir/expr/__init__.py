"""The language of declarations: placeholders, computes, reductions, and the programs they make."""

from tensorir.expr import whole as whole  # tells tensors what their operators make
