"""The content sources: each turns its slice of state into the ranked fragments of one layer.

Read `gather` first (all sources at once, each under its own timeout), then one layer's file, say
`mission`. `contribution` and `text` hold what the layers share. State that stands inline in the request is
all there is so far; a store is added by handing it to its provider's constructor.
"""
