"""Automatic scheduling: definition -> parts, each claimed by a rule -> schedule templates with a space of knobs.

Words here: a cell is one output element of a stage, a term one summand of its reduction; a part is a rule's schedule
for the stages it claims, the anchor its last stage; an engine is a tile class of ``tensorir.engines`` for matrix
products.
"""
