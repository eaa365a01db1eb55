"""What a batch of events changes, given what is stored: the same rules for every store.

A store reads the rows that have the events' ids, and the things that the events and those rows speak of;
hands both to `plan_changes`; writes the rows; folds anew what that says, from its own rows; and writes what
the things have come to. All in one transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from worker.state.folding import LAST_COUNTS, UNORDERED, EntityState, fold_on
from worker.state.records import GROUP_OF, EntityKey, StateRecord
from worker.state.store import Applied, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What has to be written, and what has to be folded again first."""

    rows: tuple[StateRecord, ...]
    """Events to store, in place of the ones with the same ids."""
    folded: Mapping[EntityKey, EntityState]
    """Things that the events have led on, ready to store."""
    to_refold: frozenset[EntityKey]
    """Things whose past has changed: to be folded anew from all their rows, the new ones included."""
    applied: Applied


def entities_of(records: Iterable[StateRecord]) -> frozenset[EntityKey]:
    """The things that the records speak of."""
    return frozenset(record.entity for record in records)


def plan_changes(
    incoming: Sequence[StateRecord],
    *,
    stored: Mapping[str, StateRecord],
    states: Mapping[EntityKey, EntityState],
) -> Changes:
    """What the events change. `stored` are the rows with their ids, `states` the things that they speak of.

    The result depends on the set of events only, but for those that happened before what was compacted: they
    are kept and change nothing. O(n log n) in the events given.
    """
    rows: dict[str, StateRecord] = {}
    repeated = conflicting = late = 0
    past: set[EntityKey] = set()
    for record in incoming:
        known = rows.get(record.event_id) or stored.get(record.event_id)
        if known is None:
            rows[record.event_id] = record
            continue
        if known.digest == record.digest:
            repeated += 1
        else:
            conflicting += 1
        merged = merge(known, record)
        if merged == known:
            continue
        rows[record.event_id] = merged
        before = stored.get(record.event_id)
        # Seen earlier than was known, an event that has its own time counts as it did.
        if before is not None and (before.order, before.digest) != (merged.order, merged.digest):
            past |= {before.entity, merged.entity}
    led_on: dict[EntityKey, list[StateRecord]] = defaultdict(list)
    for record in rows.values():
        before = stored.get(record.event_id)
        if before is not None and record.entity not in past:
            continue
        state = states.get(record.entity)
        if state is not None and state.base is not None and record.order <= state.base.last:
            late += 1
        else:
            led_on[record.entity].append(record)
    folded: dict[EntityKey, EntityState] = {}
    for key, records in led_on.items():
        records.sort(key=lambda record: record.order)
        state = states.get(key)
        if key not in past and state is not None and key.kind in LAST_COUNTS:
            records = [record for record in records if record.order > state.last]  # noqa: PLW2901  fewer of the same
            if not records:
                continue
        is_later = state is None or key.kind in UNORDERED or records[0].order > state.last
        if key in past or not is_later:
            past.add(key)
            continue
        try:
            folded[key] = fold_on(state, records)
        except ValueError:
            past.add(key)
    return Changes(
        rows=tuple(rows.values()),
        folded=folded,
        to_refold=frozenset(past),
        applied=Applied(
            new=sum(event_id not in stored for event_id in rows),
            repeated=repeated,
            conflicting=conflicting,
            late=late,
            touched=frozenset(Place(key.thread_id, GROUP_OF[key.kind]) for key in (*folded, *past)),
        ),
    )


def merge(one: StateRecord, other: StateRecord) -> StateRecord:
    """Two sightings of one event id as one: the smaller digest's body, the smaller record timestamp.

    Commutative, associative and idempotent.
    """
    kept = min(one, other, key=lambda record: record.digest)
    return replace(kept, received_us=min(one.received_us, other.received_us))
