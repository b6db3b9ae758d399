"""Schedules: primitives that rewrite a program's loop nests and refuse what would change its meaning."""
