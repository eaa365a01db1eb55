"""Pure accounting in tokens: reservations, counting, charging, trimming, and the effective budget.

Read `layers` first (who may spend how much), then `ledger`, `tokens`, `allocation` and `trimming`.
Nothing here retrieves or renders anything.
"""
