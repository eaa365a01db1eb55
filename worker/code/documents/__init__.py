"""Requirement and decision files, as people write them, to nodes and edges of the graph.

Read `reading` first (one file's text to a `DocumentFacts`, by the parser that its path and content ask for),
then `project` (the facts of all files to nodes and edges) and `references` (what the decisions speak of,
looked up among the graph's nodes). Everything is pure; no text makes a parser raise.
"""
