"""On-demand tools: what an agent asks for beside the bundle that it was given.

Read `toolbox` first: it validates a call, reads what the tool needs within one project and thread, and fits
what the tool found into the call's budget. The tools themselves are plain functions of a snapshot.
"""
