"""The declaration language: placeholders, compute, reductions, scans, scatters, and their unscheduled programs."""

from tensorir.expr import whole as whole  # tells tensors what their operators make
