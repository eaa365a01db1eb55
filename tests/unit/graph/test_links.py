from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.graph import NodeLabel
from tests.unit.graph.graphs import function, snapshot_of
from worker.graph.links import BASE_STRENGTHS, MAX_READINGS, link_request
from worker.graph.model import Node, NodeRef

SESSION = function("app/db.py", "Session", label="Class")
MAKE_SESSION = function("app/db.py", "session")
ALPHA_BETA = function("app/db.py", "AlphaBeta", label="Class")
ALPHA_RUN = function("app/jobs.py", "Alpha.Same.run")
BETA_RUN = function("app/jobs.py", "Beta.Same.run")
RETRY = Node(
    label="Function",
    id="src/net/http.py::retry_loop",
    name="retry_loop",
    path="src/net/http.py",
    start_line=10,
    end_line=20,
    text="def retry_loop(): ...\n",
    properties=(("qualname", "retry_loop"),),
)
MODULE = function("src/net/http.py", "<module>", label="Module")
ITEM = Node(label="RequirementItem", id="REQ-106-021", name="Expansion is bounded", text="k hops")
SNAPSHOT = snapshot_of([SESSION, MAKE_SESSION, ALPHA_BETA, ALPHA_RUN, BETA_RUN, RETRY, MODULE, ITEM])


def found(text: str, *paths: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    links = link_request(text, paths, SNAPSHOT)
    return {link.mention: (link.kind, tuple(ref.id for ref in link.nodes)) for link in links.entities}


def test_names_that_differ_in_case_alone_are_two() -> None:
    assert found("`Session` breaks") == {"Session": ("exact", (SESSION.id,))}
    assert found("call session() twice") == {"session": ("exact", (MAKE_SESSION.id,))}


def test_an_ambiguous_name_keeps_all_its_readings_and_each_is_weaker() -> None:
    [link] = link_request("`run` hangs", (), SNAPSHOT).entities
    assert [ref.id for ref in link.nodes] == [ALPHA_RUN.id, BETA_RUN.id]
    assert link.is_ambiguous
    assert link.strength == round(1.2 / 2**0.5, 6)


def test_a_qualified_name_means_the_one_with_that_owner() -> None:
    assert found("Beta.Same.run hangs")["Beta.Same.run"] == ("qualified", (BETA_RUN.id,))


@pytest.mark.parametrize("mention", ["RetryLoop", "retryLoop", "retry-loop", "RETRY_LOOP"])
def test_other_spellings_of_a_name_are_folded(mention: str) -> None:
    assert list(found(f"the {mention} ignores it").values()) == [("normalised", (RETRY.id,))]


@pytest.mark.parametrize(
    "path", ["src/net/http.py", "net/http.py", "/srv/app/src/net/http.py", "C:\\w\\src\\net\\http.py"]
)
def test_a_path_is_found_from_any_checkout(path: str) -> None:
    assert found(f"see {path} please")["src/net/http.py"] == ("path", (MODULE.id,))


def test_a_traceback_names_the_function_that_holds_the_line() -> None:
    text = 'Traceback:\n  File "/srv/src/net/http.py", line 12, in retry_loop\n    raise X'
    assert found(text)["src/net/http.py:12"] == ("traceback", (RETRY.id,))


def test_a_requirement_is_named_by_its_literal_id() -> None:
    assert found("implements REQ-106-021.")["REQ-106-021"] == ("exact", (ITEM.id,))


def test_the_payloads_files_are_roots() -> None:
    assert found("hello there", "src/net/http.py") == {"src/net/http.py": ("payload", (MODULE.id,))}


@pytest.mark.parametrize("mention", ["alphabeta", "ALPHABETA", "Alphabeta"])
def test_a_plain_word_that_no_name_equals_means_the_class_that_folds_to_it(mention: str) -> None:
    assert found(f"change the {mention}") == {mention: ("word", (ALPHA_BETA.id,))}


def test_a_plain_word_means_no_function_that_only_folds_to_it() -> None:
    assert found("change the retryloop") == {}


def test_a_plain_word_that_some_name_equals_means_no_other() -> None:
    assert found("a session breaks") == {"session": ("word", (MAKE_SESSION.id,))}


def test_short_plain_words_are_not_names() -> None:
    assert found("run it") == {}


@settings(max_examples=60)
@given(st.text(max_size=300), st.lists(st.text(max_size=30), max_size=4))
def test_any_text_and_paths_link_to_nodes_that_exist(text: str, paths: list[str]) -> None:
    links = link_request(text, paths, SNAPSHOT)
    assert links == link_request(text, paths, SNAPSHOT)
    assert all(SNAPSHOT.find(ref) is not None for link in links.entities for ref in link.nodes)


@pytest.mark.parametrize("unit", ["a.", "a::", "/a.py", "`", 'File "', "-a", "_", "a-b "])
def test_repetition_does_not_make_linking_slow(unit: str) -> None:
    # Quadratic patterns would take minutes here.
    link_request(unit * 50_000, (), SNAPSHOT)


@pytest.mark.parametrize("count", [MAX_READINGS, MAX_READINGS + 1, MAX_READINGS + 50])
@pytest.mark.parametrize("mention", ["handle_it", "HandleIt", "x.handle_it"])
def test_of_very_many_readings_the_first_by_id_are_kept_each_as_weak_as_all_make_it(
    count: int, mention: str
) -> None:
    labels: tuple[NodeLabel, ...] = ("Function", "Class")
    many = [function(f"m{n:03}.py", "handle_it", label=labels[n % 2]) for n in range(count)]
    links = link_request(f"{mention} fails", (), snapshot_of(many))
    [link] = links.entities
    kept = sorted(many, key=lambda node: node.id)[:MAX_READINGS]
    assert link.nodes == tuple(sorted(node.ref for node in kept))
    assert link.strength == round(BASE_STRENGTHS[link.kind] / count**0.5, 6)
    assert links.is_truncated == (count > MAX_READINGS)


def test_find_gives_none_for_what_is_not_there() -> None:
    assert SNAPSHOT.find(NodeRef("Function", "nowhere.py::f")) is None
