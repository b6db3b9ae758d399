"""The ``tensorir`` command: one module a verb, and the texts of ``tensorir explain``."""
