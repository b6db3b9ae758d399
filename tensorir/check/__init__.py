"""Whether a scheduled program computes what was declared, at several levels of cost."""
