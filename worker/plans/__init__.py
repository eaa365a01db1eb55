"""Plan and hand-off files, as people write them, to one kind of result.

Read `reading` first: which parser a file's path and content ask for. Each format has a module of its own;
what all share is the text without what hides tasks (`source`), its headings, items and rows (`outline`), what
a mark means (`marks`), and the way from what a parser found to the result (`assembling`). Everything is pure;
no text makes a parser raise.
"""
