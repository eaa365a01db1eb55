"""What a request asks the graph: a pure reading of it, and the digest under which answers are kept."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from schemas.codes import Ranking, Relevance, TaskType
from schemas.request import AssemblyRequest
from schemas.session import FailingTest
from schemas.wire import canonical_json, sha256_hex
from worker.graph.links import MAX_LINKED_CHARS, names_in
from worker.graph.model import NodeRef
from worker.graph.sections import Layout
from worker.ports import RequestFrame, Scope

MAX_PATHS: Final = 400
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
    ranking: Ranking
    relevance: Relevance
    budget_tokens: int
    layout: Layout
    encoding: str
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
    million_tokens: int = 1_000_000,
    policy: GraphPolicy,
    trouble: Trouble = Trouble(),  # noqa: B008 - a frozen value
) -> Question:
    """The question that a request asks. O(length of its texts).

    What fails counts as if the request had named it, and in work on a defect so do the files where something
    failed or was touched.

    Under `ranking: hop` a payload that names files is all that is asked about, as the plain rule has it: the
    message of the turn then changes neither roots nor answer.
    """
    request = frame.request
    # Who sends the diff alone does not say that no test fails.
    said = () if request.working is None else request.working.failing_tests
    failing = said or trouble.failing_tests
    paths = payload_paths(request)
    if frame.task_type == "DEBUG":
        hot = [path for path in trouble.files if is_relative(path)]
        paths = tuple(dict.fromkeys((*paths, *hot[:MAX_TROUBLED_PATHS])))
    question = Question(
        project_id=scope.project_id,
        thread_id=scope.thread_id,
        volk=request.volk,
        subject=request.subject,
        requester=request.requester,
        task_type=frame.task_type,
        text=_text(request, failing),
        paths=paths,
        failing=tuple(test.id for test in failing),
        ranking=request.ranking or policy.ranking,
        relevance=request.relevance or policy.relevance,
        budget_tokens=budget_tokens,
        layout=layout,
        encoding=encoding,
        million_tokens=million_tokens,
        policy_digest=sha256_hex(canonical_json([policy.settings_digest, policy.code_version])),
    )
    if question.ranking == "hop" and question.paths:
        return replace(question, text="")
    return question


def _text(request: AssemblyRequest, failing: Sequence[FailingTest]) -> str:
    """The message, then what failing tests say: a traceback names what it is about better than people do."""
    text = "\n".join((request.user_message, *(f"{test.id}\n{test.message or ''}" for test in failing)))
    return text[:MAX_TEXT_CHARS]


def payload_paths(request: AssemblyRequest) -> tuple[str, ...]:
    """The payload's files, relative to the project's root, each once, in their order."""
    payload = request.payload
    folder = payload.project_dir or ""
    folder = "" if folder.startswith("/") else folder
    paths = (posixpath.normpath(posixpath.join(folder, path)) for path in payload.files_created[:MAX_PATHS])
    return tuple(dict.fromkeys(path for path in paths if is_relative(path)))


def is_relative(path: str) -> bool:
    """Whether the path stays below where it starts."""
    return path not in {"", "."} and not path.startswith(("/", "../")) and path != ".."
