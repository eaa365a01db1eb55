"""The context assembly worker: requests in, one exact, budgeted bundle each out.

Open `worker.assembly` first; it reads top to bottom like the picture in the README.
"""
