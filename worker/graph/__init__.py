"""What a request is about, and the code, requirements and decisions that bear on it.

Read `request` first: it says what kind of work is asked for. `pack_file` reads the editable Markdown file in
which a selection travels, be it from a person, another tool, or this worker.
"""
