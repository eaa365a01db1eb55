"""What a request asks the graph: a pure reading of it, and the digest under which answers are kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from schemas.codes import Ranking, Relevance, TaskType
from schemas.session import FailingTest
from schemas.wire import canonical_json, sha256_hex
from worker.graph.links import MAX_LINKED_CHARS, names_in
from worker.graph.model import NodeRef
from worker.graph.sections import Layout
from worker.ports import RequestFrame, Scope
from worker.targets import is_relative, payload_paths

MAX_TROUBLED_PATHS: Final = 20
MAX_ROOTS: Final = 1_000
MAX_TEXT_CHARS: Final = 65_536
"""Of what is looked for by words: what a prompt's worth of text says first. Megabytes of a failing test's
output would else be digested and searched on behalf of three layers."""

_CODE_ID: Final = re.compile(r"(?<![\w/.-])([\w./-]{1,400}\.\w{1,5})(?:::([\w.<>#]{1,400}))?")
_REQUIREMENT_ID: Final = re.compile(r"(?<![\w-])[A-Z][A-Z0-9]*(?:-[A-Z0-9]+)*-\d+[a-z]?(?![\w-])")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPolicy:
    """The settings that shape what is selected."""

    ranking: Ranking
    """Where a request names none."""
    relevance: Relevance
    settings_digest: str
    code_version: str
    unmasked_projects: frozenset[str] = frozenset()
    """Whose pack files show credentials as they are. Part of `settings_digest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request as the graph sees it. Equal questions about equal snapshots have equal answers."""

    project_id: str
    thread_id: str | None
    volk: str
    subject: str
    requester: str
    task_type: TaskType
    text: str
    """What is looked for by names and words."""
    paths: tuple[str, ...]
    """Files that the payload names, relative to the project's root."""
    failing: tuple[str, ...]
    """Ids of failing tests."""
    is_state_missing: bool
    """Whether what fails in the thread could not be read, and so was not asked about."""
    ranking: Ranking
    relevance: Relevance
    budget_tokens: int
    layout: Layout
    has_passages: bool
    """Whether the subject has a use for what words find besides the pack."""
    encoding: str
    label_tokens: int
    """What each section takes besides, to be cited by."""
    extra_hops: int
    """Beyond the template's own; 0 where nothing widens the question."""
    leading: tuple[str, ...]
    """Ids of nodes that come before all others."""
    million_tokens: int
    """What a million tokens count as: models that share an encoding may differ in their safety factor."""
    policy_digest: str

    def key(self, snapshot_id: str, *, of_part: bool = False) -> str:
        """Under which the answer is kept: a digest of all that it depends on.

        An answer from the part of a graph that lies around the question's own roots is another than one from
        the whole.
        """
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        fields |= {
            "snapshot_id": snapshot_id,
            "of_part": of_part,
            "text": sha256_hex(self.text.encode("utf-8", "surrogatepass")),
        }
        return sha256_hex(canonical_json(fields))

    def roots(self) -> tuple[NodeRef, ...]:
        """Nodes that the request names by their ids, sorted: where a graph too large to hold is entered.

        At most `MAX_ROOTS`, those of paths first, then in the order of the text's beginning. O(length).
        """
        refs: dict[NodeRef, None] = {}
        for path in self.paths:
            refs |= dict.fromkeys((NodeRef("File", path), NodeRef("Module", f"{path}::<module>")))
        scanned = self.text[:MAX_LINKED_CHARS]
        for match in _CODE_ID.finditer(scanned):
            path, name = match[1], match[2]
            refs |= dict.fromkeys((NodeRef("File", path), NodeRef("Module", f"{path}::<module>")))
            if name:
                refs |= dict.fromkeys(
                    (NodeRef("Class", f"{path}::{name}"), NodeRef("Function", f"{path}::{name}"))
                )
        for match in _REQUIREMENT_ID.finditer(scanned):
            refs |= dict.fromkeys((NodeRef("Requirement", match[0]), NodeRef("RequirementItem", match[0])))
        return tuple(sorted([*refs][:MAX_ROOTS]))

    def names(self) -> tuple[str, ...]:
        """What the request may call nodes by, sorted: where a graph too large to hold is entered, too."""
        return names_in(self.text)

    def failing_tests(self) -> tuple[NodeRef, ...]:
        """The failing tests as nodes: what pytest calls `a.py::TestA::test_b` is `a.py::TestA.test_b`."""
        refs: list[NodeRef] = []
        for test_id in self.failing:
            path, separator, names = test_id.partition("::")
            qualname = names.partition("[")[0].replace("::", ".")
            if separator and qualname:
                refs.append(NodeRef("Function", f"{path}::{qualname}"))
        return tuple(refs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What failed in the thread lately, where the request does not say it itself."""

    failing_tests: tuple[FailingTest, ...] = ()
    files: tuple[str, ...] = ()
    """Paths that failures name, or that were touched, the most telling first."""


def ask(
    frame: RequestFrame,
    scope: Scope,
    *,
    budget_tokens: int,
    layout: Layout,
    encoding: str,
    label_tokens: int = 0,
    million_tokens: int = 1_000_000,
    policy: GraphPolicy,
    trouble: Trouble | None = Trouble(),  # noqa: B008 - a frozen value
) -> Question:
    """The question that a request asks. O(length of its texts).

    What fails counts as if the request had named it, and in work on a defect so do the files where something
    failed or was touched.

    Under `ranking: hop` a payload that names files is all that is asked about, as the plain rule has it: the
    message of the turn then changes neither roots nor answer. Of trouble that cannot be read now, which is
    None, the question says so.
    """
    is_state_missing = trouble is None
    trouble = trouble or Trouble()
    request = frame.request
    # Who sends the diff alone does not say that no test fails.
    said = () if request.working is None else request.working.failing_tests
    failing = said or trouble.failing_tests
    paths = payload_paths(request)
    if frame.task_type == "DEBUG":
        hot = [path for path in trouble.files if is_relative(path)]
        paths = tuple(dict.fromkeys((*paths, *hot[:MAX_TROUBLED_PATHS])))
    widening = frame.widening
    named = () if widening is None else widening.roots
    question = Question(
        project_id=scope.project_id,
        thread_id=scope.thread_id,
        volk=request.volk,
        subject=request.subject,
        requester=request.requester,
        task_type=frame.task_type,
        text=_text(request.user_message if widening is None else widening.message, failing, named),
        paths=paths,
        failing=tuple(test.id for test in failing),
        is_state_missing=is_state_missing,
        ranking=request.ranking or policy.ranking,
        relevance=request.relevance or policy.relevance,
        budget_tokens=budget_tokens,
        layout=layout,
        has_passages=layout == "prompt" and frame.subject.inject and frame.subject.semantic,
        encoding=encoding,
        label_tokens=label_tokens,
        extra_hops=0 if widening is None else widening.hops,
        leading=named,
        million_tokens=million_tokens,
        policy_digest=sha256_hex(canonical_json([policy.settings_digest, policy.code_version])),
    )
    if question.ranking == "hop" and question.paths:
        return replace(question, text="\n".join(named))
    return question


def _text(message: str, failing: Sequence[FailingTest], named: Sequence[str]) -> str:
    """What is named besides, the message, then what failing tests say.

    A traceback names what it is about better than people do.
    """
    said = (f"{test.id}\n{test.message or ''}" for test in failing)
    text = "\n".join((*named, message, *said))
    return text[:MAX_TEXT_CHARS]
