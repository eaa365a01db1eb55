"""Source tree to facts: what a module defines, calls, imports, decides and traces, from its text alone.

Read `extractor` first (one module's source to `facts`), then `sources` (how files below configured roots
are read without being led outside), `traces` (requirement tags) and `neighbourhood` (who calls whom among
a set of modules). Everything but `sources` is pure: no file, clock or environment reaches a fact.

An index of a whole tree reads from `indexing`: `collecting` says which files there are, `catalogue` what is
known of them, `patching` works out what a change touches, and `rebuilding` everything, where that is needed.
"""
