"""`python -m worker` is `context-worker`."""

from worker.cli import main

main()
