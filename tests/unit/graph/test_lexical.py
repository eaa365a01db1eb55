from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.graph.lexical import Field, build_index, look_up, query_of, rarest, score, score_frequent

FIELDS = {"name": Field(weight=4.0), "body": Field(weight=1.0)}
WORDS = st.lists(st.sampled_from("cart order token parse load mail".split()), max_size=12)  # noqa: SIM905 - words


def scores(documents: list[dict[str, str]], text: str) -> list[float]:
    index = build_index(documents, fields=FIELDS, alone={})
    return score(index.together, index.known(query_of(text)), document_count=len(documents)).tolist()


def test_the_score_is_that_of_the_published_formula() -> None:
    documents = [{"name": "cart", "body": "order cart"}, {"name": "mail", "body": "order order"}]
    # Names have one word each, bodies two, so lengths are average and take nothing off.
    idf = math.log(1 + (2 - 1 + 0.5) / (1 + 0.5))
    frequency = 4.0 * 1 + 1.0 * 1
    # The first line counts twice: 1 + ln 2.
    expected = (1 + math.log(2)) * idf * frequency / (1.2 + frequency)
    assert scores(documents, "cart") == pytest.approx([expected, 0.0], rel=1e-6)


def test_a_long_field_counts_a_word_less_than_a_short_one() -> None:
    short, long = scores([{"body": "cart"}, {"body": "cart " + "order " * 50}], "cart")
    assert short > long > 0


def test_a_word_in_the_name_counts_more_than_one_in_the_body() -> None:
    named, mentioned = scores([{"name": "cart", "body": "mail"}, {"name": "mail", "body": "cart"}], "cart")
    assert named > mentioned


def test_no_documents_and_no_known_words_give_zeros() -> None:
    assert scores([], "cart") == []
    assert scores([{"body": ""}, {"body": "order"}], "cart \N{SNOWMAN}") == [0.0, 0.0]


def test_the_rarest_term_of_a_document_is_the_one_that_counts() -> None:
    documents = [{"body": body} for body in ("order cart", "order", "mail", "token cart order")]
    documents += [{"body": "order mail"}] * 8
    index = build_index(documents, fields=FIELDS, alone={})
    terms, places = index.known(query_of("token mail order cart")), np.arange(4)
    # `order` and `mail` stand in so many that they have a row, the others in so few that they have postings.
    rare = rarest(look_up(index.together, terms), document_count=len(documents))
    _, frequent = score_frequent(index.together, terms, places)
    idf = {term: index.together.idf[index.vocabulary[term]] for term in ("order", "cart", "token", "mail")}
    assert rare[:5].tolist() == [idf["cart"], 0.0, 0.0, idf["token"], 0.0]
    assert frequent.tolist() == [idf["order"], idf["order"], idf["mail"], idf["order"]]


@settings(max_examples=60)
@given(st.lists(WORDS, min_size=1, max_size=12), WORDS)
def test_terms_with_rows_find_what_terms_with_postings_find(
    bodies: list[list[str]], wanted: list[str]
) -> None:
    """Documents that hold nothing make the terms of the others rare, and so change how they are kept."""
    documents = [{"body": " ".join(body)} for body in bodies]
    asked = {term for term, _ in query_of(" ".join(wanted)).weights}
    for padding in (0, 60):
        index = build_index(documents + [{"body": "x"}] * padding, fields=FIELDS, alone={})
        terms = index.known(query_of(" ".join(wanted)))
        assert padding == 0 or not any(term in index.together.row_of for term, _ in terms)
        found = score(index.together, terms, document_count=index.document_count)
        held = [{term for term, _ in query_of(" ".join(body)).weights} for body in bodies]
        assert (found[: len(bodies)] > 0).tolist() == [bool(asked & terms) for terms in held]


@settings(max_examples=60)
@given(st.lists(WORDS, min_size=1, max_size=8), WORDS, st.randoms(use_true_random=False))
def test_a_document_scores_the_same_wherever_it_stands(
    bodies: list[list[str]], wanted: list[str], rng: Random
) -> None:
    documents = [{"body": " ".join(body)} for body in bodies]
    order = list(range(len(documents)))
    rng.shuffle(order)
    straight = scores(documents, " ".join(wanted))
    shuffled = scores([documents[place] for place in order], " ".join(wanted))
    assert np.allclose([straight[place] for place in order], shuffled, rtol=1e-12, atol=0)


@settings(max_examples=30)
@given(st.lists(st.text(max_size=60), max_size=6))
def test_any_text_can_be_indexed(texts: list[str]) -> None:
    documents = [{"name": text[:10], "body": text} for text in texts]
    index = build_index(documents, fields=FIELDS, alone={"name": Field(weight=1.0)})
    assert index.document_count == len(texts)
    assert np.isfinite(index.together.gains).all()
