"""Automatic scheduling: definition -> parts of it, each claimed by a rule -> schedule templates with a space of
knobs.
"""
