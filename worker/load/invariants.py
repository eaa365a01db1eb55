"""What must hold of any traffic, judged from what was seen of it. Pure: no broker, no clock.

`INVARIANTS` is the list; `judge` goes through the cases of a run one by one, so memory holds one of them. An
invariant that could not be judged for some cases says for how many and why: silence is no proof.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from schemas.bundle import BundleUsage
from schemas.usage import usage_event_id
from schemas.wire import sha256_hex
from worker.load.answers import Answer, UsageSeen, read_answer, read_usage
from worker.load.generator import CANARY_PREFIX, canary_of
from worker.load.observations import Case, CountedModel, Progress, Rules, Sent
from worker.load.recount import recount
from worker.load.rewriting import Asked

_SHOWN: Final = 5
_CANARY: Final = re.compile(re.escape(CANARY_PREFIX) + r"[0-9a-f]{16}(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class Broken:
    """What does not hold, in words."""

    what: str


@dataclass(frozen=True, slots=True)
class NotJudged:
    """What could not be told, and why."""

    why: str


Finding = Broken | NotJudged


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One case with its bodies read, once for all invariants."""

    case: Case
    outcomes: tuple[Answer, ...]
    """What the store held for it: the replies that are outcomes."""
    earlier: tuple[Answer, ...]
    """The same, from before the run."""
    others: tuple[Answer, ...]
    """Replies built from a record alone, such as `request_id_reused`."""
    usages: tuple[UsageSeen, ...]
    rules: Rules
    progress: Mapping[int, Progress]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """One claim: judged case by case, or on the progress of the partitions."""

    name: str
    claim: str
    of_case: Callable[[Read], Iterator[Finding]] | None = None
    of_progress: Callable[[Iterable[Progress]], Iterator[Finding]] | None = None


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What became of one invariant."""

    name: str
    claim: str
    broken: int = 0
    examples: list[str] = field(default_factory=list[str])
    """The first few."""
    not_judged: dict[str, int] = field(default_factory=dict[str, int])
    """How often, by why."""

    @property
    def holds(self) -> bool:
        """Whether nothing was found against it."""
        return not self.broken

    def add(self, finding: Finding, subject: str) -> None:
        """Count one finding."""
        if isinstance(finding, NotJudged):
            self.not_judged[finding.why] = self.not_judged.get(finding.why, 0) + 1
            return
        self.broken += 1
        if len(self.examples) < _SHOWN:
            self.examples.append(f"{subject}: {finding.what}" if subject else finding.what)


def judge(cases: Iterable[Case], progress: Sequence[Progress], rules: Rules) -> tuple[Verdict, ...]:
    """The verdict on each invariant, in order. Cost: one pass, and one tokenisation of every bundle."""
    verdicts = tuple(Verdict(name=item.name, claim=item.claim) for item in INVARIANTS)
    by_partition = {item.partition: item for item in progress}
    for case in cases:
        read = _read(case, rules, by_partition)
        for invariant, verdict in zip(INVARIANTS, verdicts, strict=True):
            if invariant.of_case is not None:
                for finding in invariant.of_case(read):
                    verdict.add(finding, _subject(case))
    for invariant, verdict in zip(INVARIANTS, verdicts, strict=True):
        if invariant.of_progress is not None:
            for finding in invariant.of_progress(progress):
                verdict.add(finding, "")
    return verdicts


def _read(case: Case, rules: Rules, progress: Mapping[int, Progress]) -> Read:
    answers = [read_answer(seen) for seen in case.replies]
    usages = tuple(read_usage(seen) for seen in case.usages)

    def is_outcome(answer: Answer) -> bool:
        if case.key is None or answer.code == "request_id_reused":
            return False
        # What the store has forgotten is answered `expired` without an outcome; new ids never are.
        return not (rules.keeps_ids and answer.code == "expired" and not usages)

    return Read(
        case=case,
        outcomes=tuple(answer for answer in answers if is_outcome(answer)),
        earlier=tuple(filter(is_outcome, map(read_answer, case.earlier))),
        others=tuple(answer for answer in answers if not is_outcome(answer)),
        usages=usages,
        rules=rules,
        progress=progress,
    )


def _subject(case: Case) -> str:
    if case.key is None:
        place = next((f"{sent.partition}:{sent.offset}" for sent in case.sent), "nowhere")
        return f"the record without ids at {place}"
    generation = f" (generation {case.key.generation})" if case.key.generation else ""
    return f"{case.key.project_id} {case.key.request_id}{generation}"


# --- I1, I2 ------------------------------------------------------------------------------------------


def _one_outcome(read: Read) -> Iterator[Finding]:
    if not read.case.sent:
        return
    if read.case.key is None:
        if not read.others and not read.case.letters:
            yield Broken("no answer")
        return
    outcomes = (*read.outcomes, *read.earlier)
    meanings = {answer.meaning for answer in outcomes}
    if len(meanings) > 1:
        said = ", ".join(sorted({answer.in_words for answer in outcomes}))
        yield Broken(f"{len(meanings)} distinct outcomes: {said}")
    if not read.outcomes and not (read.others and read.rules.keeps_ids):
        yield Broken("no outcome")


def _asked_for(read: Read) -> Iterator[Finding]:
    if read.case.sent:
        return
    for answer in (*read.outcomes, *read.others):
        if read.rules.keeps_ids:
            yield NotJudged("with kept ids, who asked for another outcome is not known")
        else:
            yield Broken(f"{answer.in_words} without a request")


# --- I3 ----------------------------------------------------------------------------------------------


def _usage_agrees(read: Read) -> Iterator[Finding]:
    if read.case.key is None or (read.rules.keeps_ids and not read.case.sent):
        return
    if read.outcomes and not read.usages:
        yield Broken("an outcome without a usage event")
    if not read.outcomes and not all(usage.is_of_retry for usage in read.usages):
        yield Broken("a usage event without an outcome")
    if len({usage.meaning for usage in read.usages}) > 1:
        yield Broken(f"{len(read.usages)} distinct usage events")
    key = read.case.key
    expected = usage_event_id(key.project_id, key.request_id, key.generation)
    for usage in read.usages:
        if usage.event_id != expected:
            yield Broken(f"the usage event's id is {usage.event_id}, not {expected}")
        for answer in read.outcomes:
            yield from _spent_alike(answer, usage)


def _spent_alike(answer: Answer, usage: UsageSeen) -> Iterator[Finding]:
    if (answer.outcome, answer.code) != (usage.outcome, usage.code):
        yield Broken(f"the usage event says {usage.outcome}, the reply is {answer.in_words}")
    if answer.spending is not None and answer.spending != usage.spending:
        yield Broken("the tokens of the usage event are not those of the bundle")
    if answer.outcome == "rejected" and usage.spending is not None:
        yield Broken("the usage event of a rejection counts tokens")


# --- I4, I8 ------------------------------------------------------------------------------------------


def _committed_when_done(read: Read) -> Iterator[Finding]:
    """Each record that was committed caused a reply of its own, or at least its dead letter.

    Work that is done twice is answered twice, so there may be more replies than records, never fewer.
    """
    case = read.case
    committed = [sent for sent in case.sent if _is_committed(sent, read.progress)]
    places = {(letter.partition, letter.offset) for letter in case.letters}
    if case.key is None:
        committed = [sent for sent in committed if (sent.partition, sent.offset) not in places]
    answers = sum(seen.copies for seen in case.replies)
    if len(committed) > answers:
        yield Broken(f"{len(committed)} records are committed, and answered were {answers}")


def _is_committed(sent: Sent, progress: Mapping[int, Progress]) -> bool:
    partition = progress.get(sent.partition)
    return partition is not None and sent.offset < partition.committed


def _caught_up(progress: Iterable[Progress]) -> Iterator[Finding]:
    for item in progress:
        if item.lag:
            yield Broken(f"partition {item.partition}: {item.lag} records behind")


# --- I5 ----------------------------------------------------------------------------------------------


def _repeats_are_equal(read: Read) -> Iterator[Finding]:
    if not read.case.sent:
        return
    spelled = {(answer.seen.kind, answer.seen.body): answer for answer in (*read.outcomes, *read.earlier)}
    yield from _one_spelling("outcome", tuple(spelled.values()))
    yield from _one_spelling("reply without outcome", read.others)
    yield from _one_spelling("usage event", read.usages)
    letters: dict[tuple[int, int, str], int] = {}
    for letter in read.case.letters:
        place = (letter.partition, letter.offset, letter.code)
        letters[place] = letters.get(place, 0) + 1
    for (partition, offset, code), count in letters.items():
        if count > 1:
            yield Broken(f"{count} different dead letters {code} of record {partition}:{offset}")


def _one_spelling(what: str, items: Sequence[Answer] | Sequence[UsageSeen]) -> Iterator[Finding]:
    """What means the same is the same bytes; what does not is I1's and I3's to tell."""
    spellings: dict[str, int] = {}
    for item in items:
        spellings[item.meaning] = spellings.get(item.meaning, 0) + 1
    for count in spellings.values():
        if count > 1:
            yield Broken(f"one {what} in {count} spellings")


# --- I6 ----------------------------------------------------------------------------------------------


def _within_budget(read: Read) -> Iterator[Finding]:
    for answer in read.outcomes:
        if answer.outcome == "rejected" or not read.case.sent:
            continue
        bundle, why = answer.bundle(read.case.fetched)
        if bundle is None:
            yield NotJudged(why)
        elif bundle.usage is None or bundle.messages is None:
            yield NotJudged("the bundle does not carry messages and usage")
        else:
            texts = [message.content for message in bundle.messages]
            client = bundle.usage.overhead.client
            # What counts against the window is what was asked, not what the bundle says of itself.
            if all(client != sent.asked.client_overhead_tokens for sent in read.case.sent):
                yield Broken(f"{client} tokens kept for the client, which is not what it asked")
            yield from _recounted(texts, bundle.usage, read.case.sent[0].asked, read.rules)


def _recounted(texts: Sequence[str], usage: BundleUsage, asked: Asked, rules: Rules) -> Iterator[Finding]:
    model = rules.models.get(asked.model or rules.default_model)
    if model is None and asked.encoding is not None and asked.total_tokens is not None:
        # A model that the table lacks brings its own window and encoding.
        model = CountedModel(window_tokens=asked.total_tokens, encoding=asked.encoding, safety_factor="1")
    if model is None:
        yield NotJudged("the model is not in this command's settings")
        return
    encoding = asked.encoding or model.encoding
    recounted = 0
    for text in texts:
        tokens = recount(text, encoding=encoding, safety_factor=model.safety_factor)
        if tokens is None:
            yield NotJudged(f"a text that is not counted here as {encoding}")
            return
        recounted += tokens
    total_tokens = asked.total_tokens or model.window_tokens
    yield from _over_budget(usage, recounted=recounted, total_tokens=total_tokens)


def _over_budget(bundle_usage: BundleUsage, *, recounted: int, total_tokens: int) -> Iterator[Finding]:
    overhead = bundle_usage.overhead
    own = overhead.preamble + (overhead.template or 0)
    counted = bundle_usage.spent + own
    if recounted > counted or (bundle_usage.exact and recounted != counted):
        yield Broken(f"{recounted} tokens recounted, the bundle says {counted}")
    output = bundle_usage.layers["output"].budget
    whole = recounted + overhead.client + overhead.framing + output
    if whole > total_tokens:
        yield Broken(f"{whole} tokens with overhead and output, the window is {total_tokens}")
    if sum(spend.spent for spend in bundle_usage.layers.values()) != bundle_usage.spent:
        yield Broken("the layers do not add up to what was spent")
    for name, spend in bundle_usage.layers.items():
        if spend.spent > spend.budget:
            yield Broken(f"layer {name} spent {spend.spent} of {spend.budget}")


# --- I7 ----------------------------------------------------------------------------------------------


def _own_text_only(read: Read) -> Iterator[Finding]:
    key = read.case.key
    if key is None or not read.case.sent:
        return
    own_canary = canary_of(key.project_id)
    for answer in read.outcomes:
        bundle, why = answer.bundle(read.case.fetched)
        if bundle is None:
            if why:
                yield NotJudged(why)
            continue
        if bundle.project_id != key.project_id:
            yield Broken(f"the bundle of project {bundle.project_id}")
        text = answer.all_text(bundle)
        for foreign in sorted(set(_CANARY.findall(text)) - {own_canary}):
            yield Broken(f"holds {foreign}, the canary of another project")
        for canary, project_id in read.rules.canaries.items():
            if project_id != key.project_id and canary in text:
                yield Broken(f"holds a canary of project {project_id}")
        if bundle.messages is not None and not _ends_with_own_message(
            bundle.messages[-1].content, read.case.sent
        ):
            yield Broken("its user text is not that of the request")


def _ends_with_own_message(content: str, sent: Sequence[Sent]) -> bool:
    """Whether the prompt ends with the message of one of the requests with these ids."""
    return any(
        item.message_chars is None
        or sha256_hex(content[len(content) - item.message_chars :].encode("utf-8", "surrogatepass"))
        == item.message_sha256
        for item in sent
        if item.message_chars is None or item.message_chars <= len(content)
    )


INVARIANTS: Final = (
    Invariant(name="I1", claim="one distinct outcome per project, id and generation", of_case=_one_outcome),
    Invariant(name="I2", claim="no outcome without a request", of_case=_asked_for),
    Invariant(name="I3", claim="usage events are those of the outcomes, tokens agree", of_case=_usage_agrees),
    Invariant(name="I4", claim="no commit past unfinished work", of_case=_committed_when_done),
    Invariant(name="I5", claim="what is published again is byte-equal", of_case=_repeats_are_equal),
    Invariant(name="I6", claim="budgets hold when recounted with tiktoken", of_case=_within_budget),
    Invariant(name="I7", claim="no text of another project or request", of_case=_own_text_only),
    Invariant(name="I8", claim="the lag returns to 0", of_progress=_caught_up),
)
