from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.budget.hostile_text import hostile_text
from worker.memory.embedding import DIMENSIONS, NORM, dot_products, embed, embed_terms, similarity


@pytest.mark.parametrize("text", ["", " \n", "!?", "\x00", "the of and", "a" * 200])
def test_a_text_without_terms_has_the_zero_vector_and_is_like_nothing(text: str) -> None:
    assert not embed(text).any()
    assert similarity(embed(text), embed(text)) == 0.0
    assert similarity(embed(text), embed("retries need jitter")) == 0.0


def test_an_embedding_is_the_same_bytes_on_every_machine() -> None:
    data = embed("We chose SQLite; 漢字 and retries(jitter=0.5) for HTTPClient").astype("<i2").tobytes()
    assert (
        hashlib.sha256(data).hexdigest() == "6156b44d5f2c85feb723976b775d4d6aafa33a02c98796ef74b7753c975d2f0c"
    )


@settings(max_examples=30)
@given(hostile_text)
def test_an_embedding_has_its_norm_and_is_like_itself(text: str) -> None:
    vector = embed(text)
    assert vector.shape == (DIMENSIONS,)
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    assert norm == 0 or NORM - 9 < norm < NORM + 9
    assert similarity(vector, vector) == pytest.approx(1.0 if norm else 0.0, abs=0.01)


@settings(max_examples=30)
@given(hostile_text, hostile_text)
def test_likeness_is_symmetrical_and_bounded(one: str, other: str) -> None:
    a, b = embed(one), embed(other)
    assert -1.0 <= similarity(a, b) == similarity(b, a) <= 1.0


@settings(max_examples=30)
@given(st.lists(st.text(max_size=9), max_size=12), st.integers(0, 2**32))
def test_the_order_of_terms_changes_nothing(terms: list[str], seed: int) -> None:
    shuffled = random.Random(seed).sample(terms, len(terms))
    assert np.array_equal(embed_terms(terms), embed_terms(shuffled))


@settings(max_examples=12)
@given(st.integers(0, 2**32), st.integers(1, 2_500))
def test_dot_products_are_those_of_whole_numbers(seed: int, count: int) -> None:
    numbers = np.random.default_rng(seed)
    rows = numbers.integers(-127, 128, (count, DIMENSIONS)).astype(np.int16)
    vector = numbers.integers(-127, 128, DIMENSIONS).astype(np.int16)
    exact = rows.astype(np.int64) @ vector.astype(np.int64)
    assert dot_products(rows, vector).astype(np.int64).tolist() == exact.tolist()


def test_the_extremes_of_a_norm_multiply_exactly() -> None:
    # One odd product near 2^22, where float32 still tells neighbours apart.
    row = np.zeros((1, DIMENSIONS), dtype=np.int16)
    row[0, 0], row[0, 1] = NORM - 1, 1
    assert int(dot_products(row, row[0])[0]) == (NORM - 1) ** 2 + 1


@pytest.mark.parametrize(
    ("text", "near", "far"),
    [
        ("the request is retried", "retries of requests", "colours of the button"),
        ("pasword hashing", "passwords are hashed", "invoices are sent monthly"),
        ("configuration of kafka", "kafka config", "layout of the page"),
        ("漢字の分割", "漢字を分割する", "請求書を送る"),
    ],
)
def test_inflected_misspelt_and_unspaced_words_meet(text: str, near: str, far: str) -> None:
    asked = embed(text)
    assert similarity(asked, embed(near)) > 0.2 > similarity(asked, embed(far))


def test_unrelated_texts_have_little_in_common() -> None:
    chance = random.Random(5)
    letters = "etaoinshrdlu"
    texts = [" ".join("".join(chance.choices(letters, k=7)) for _ in range(12)) for _ in range(60)]
    rows = np.array([embed(text) for text in texts])
    cosines = np.array([dot_products(rows, row) for row in rows])[np.triu_indices(60, 1)] / NORM**2
    assert np.quantile(cosines, 0.95) < 0.25
    assert abs(float(cosines.mean())) < 0.1
