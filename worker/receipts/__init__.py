"""Writing down what decided a bundle: the receipt that names it, and the capture that can make it again.

Read `record` first. `capture` holds the inputs of fusing and sealing; `worker.explaining` reads both.
"""
