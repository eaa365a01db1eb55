"""The Kafka edge: what is consumed, dispatched, published and committed.

Read `worker.kafka.dispatch` first: it says what is promised about delivery, and keeps it.
"""
