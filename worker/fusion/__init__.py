"""Fragments from many sources become one text per layer: ten components, run in order by `pipeline`.

Read `worker.fusion.pipeline` first, then `protocols` for what each component promises.
"""
