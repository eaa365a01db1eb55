"""Citations: the ids in a prompt, its manifest, and whether an answer used what it was given."""
