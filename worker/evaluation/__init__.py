"""How well selection finds what a repository's own commits edited.

Read `runner` first: each task is a past commit, whose message is the request and whose edited functions and
classes are what should have been selected from the tree as it was before. Nothing is checked out.
"""
