"""The intermediate representation: trees of expressions and statements, dtypes, layouts, and their text form."""
