"""Where outcomes and crash bookkeeping are kept: one file per product, one binary form for all.

Read `records.py` for what is stored, then `sqlite.py` or `redis.py` for how; `sqlite_file.py` and
`redis_link.py` hold what each product needs underneath. Drivers' own errors never leave this package.
"""
