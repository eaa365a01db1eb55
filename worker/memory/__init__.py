"""What a thread remembers: which facts still hold, which of them bear on a request, and its story in short.

Pure and deterministic: values in, values out. Read `recall` first, then `summary`; `index` is what makes
recall fast, `supersession` says which facts still hold, `compression` shortens one long item.
"""
