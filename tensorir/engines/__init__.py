"""Engines: how products are multiplied on each kind of target, by configurations that a model judges."""
