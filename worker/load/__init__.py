"""Load: traffic recorded to a file, made up, published again at a chosen pace, and what came of it judged.

Read `replayer.py` first: it publishes in open loop and follows everything that comes back. `invariants.py`
says what must hold of it, `recording.py` what the file looks like.
"""
