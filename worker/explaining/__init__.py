"""Answers to "why does the prompt hold this?", from what was stored with a bundle: no live state is read.

Read `stored` first: what there is to explain. `replay` makes a bundle again from its capture, `view` says
what became of every fragment, `difference` compares two bundles, `supposing` asks what another budget would
change.
Everything here is pure.
"""
