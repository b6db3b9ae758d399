"""Schedules made from a declaration alone: rules that claim parts of it, and the templates that these make up."""
