"""What contexts cost: the log of usage events, its tolerant reader, totals and the report.

Read `log.py` for how lines get into the file and out of it, `aggregate.py` for the totals.
"""
