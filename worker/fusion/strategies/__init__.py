"""Strategies: who proposes candidates, and in which order they deserve the budget.

Read `registry` for how names become strategies, then `layered`, which all others fall back to.
"""
