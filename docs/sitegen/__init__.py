"""The mechanical parts of the documentation, made from the code when the site is built.

A page asks for one by a comment of its own line, `<!-- generated: NAME WORDS -->`; the names are
those of `directives.DIRECTIVES`. Nothing here needs mkdocs but `hooks`.
"""
