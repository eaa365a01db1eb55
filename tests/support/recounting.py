"""What a bundle says of its tokens, held against tiktoken as it comes, and against its own text."""

from __future__ import annotations

import asyncio
import gzip
import math
import os
import tempfile
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import tiktoken

from schemas.bundle import ContextBundle
from schemas.codes import CONTENT_LAYERS, PARTS
from schemas.request import AssemblyRequest
from tests.support.assembling import assemble, assembler, settings
from worker.errors import BudgetTooSmall, PinsExceedWindow
from worker.fusion.sections import fence_for
from worker.ports import Scope

ENCODINGS = {
    "gpt-4o": "o200k_base",
    "gpt-4-turbo": "cl100k_base",
    "gpt-3.5-turbo": "cl100k_base",
    "claude": "o200k_base",
}
FACTORS = {"claude": Fraction("1.35")}


@cache
def tiktokens_own(name: str) -> tiktoken.Encoding:
    """The encoding by tiktoken's own way, hash check included; the packaged file stands for the download."""
    package = find_spec("bpe_openai")  # found, not imported: only its data is wanted
    assert package is not None
    assert package.origin is not None
    data = gzip.decompress((Path(package.origin).parent / "data" / f"{name}.tiktoken.gz").read_bytes())
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, TIKTOKEN_CACHE_DIR=folder),
        mock.patch("tiktoken.load.read_file", return_value=data),
    ):
        return tiktoken.get_encoding(name)


def recount(model: str, text: str) -> int:
    """Tokens as the model table promises them."""
    if model == "generic-8k":
        return len(text.encode())
    tokens = tiktokens_own(ENCODINGS[model]).encode(text, disallowed_special=())
    return math.ceil(len(tokens) * FACTORS.get(model, Fraction(1)))


ASSEMBLER = assembler()
thoroughly = hypothesis.settings(
    max_examples=1_250 if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 50,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
"""Four properties with it are 5,000 requests under the profile `explore`, and 200 else."""


def check_request(body: dict[str, Any]) -> None:
    """Assemble the request: a refusal for want of room, or a bundle that the recount agrees with."""
    request = AssemblyRequest.model_validate(body)
    try:
        bundle = asyncio.run(assemble(request, ASSEMBLER)).bundle
    except (BudgetTooSmall, PinsExceedWindow) as refused:
        hypothesis.event(refused.code)
        return
    hypothesis.event("bundle")
    check_ledger(request, bundle)
    check_text(request, bundle)


def check_ledger(request: AssemblyRequest, bundle: ContextBundle) -> None:
    """The ledger is the recount, and neither is over the budget."""
    assert bundle.usage is not None
    assert bundle.messages is not None
    assert bundle.layers is not None
    assert request.model is not None
    usage = bundle.usage
    window = settings().content.models[request.model].window
    asked = request.budget.total if request.budget and request.budget.total else window
    overhead = usage.overhead
    above = overhead.preamble + (overhead.template or 0)
    recounted = sum(recount(request.model, message.content) for message in bundle.messages)
    assert usage.spent + above == recounted
    assert recounted + overhead.client + overhead.framing + usage.layers["output"].budget <= asked
    assert usage.total == asked - overhead.client - overhead.framing - overhead.preamble - (
        overhead.template or 0
    )
    assert usage.spent == sum(spend.spent for spend in usage.layers.values())
    assert usage.spent <= usage.total - usage.layers["output"].budget
    assert usage.layers["output"].spent == 0
    assert all(spend.spent <= spend.budget for spend in usage.layers.values())
    assert sum(spend.budget for spend in usage.layers.values()) <= usage.total
    assert {layer: report.tokens for layer, report in bundle.layers.items()} == {
        layer: usage.layers[layer].spent for layer in PARTS
    }


def check_text(request: AssemblyRequest, bundle: ContextBundle) -> None:
    """The caller's own text is whole, and no content has forged a section's frame."""
    assert bundle.messages is not None
    user = bundle.messages[-1].content
    assert user.endswith(request.user_message)
    assert (bundle.messages[0].role == "system") == bool(request.system_prompt)
    if request.system_prompt:
        assert bundle.messages[0].content == request.system_prompt
    context = user[: len(user) - len(request.user_message)]
    delimiter = fence_for(Scope(project_id=request.project_id, thread_id=request.thread_id)).delimiter
    shown = [layer for layer in CONTENT_LAYERS if f"[[context {layer} {delimiter}" in context]
    # One mark in the preamble, two a section, and none that content could have smuggled in.
    assert context.lower().count(delimiter) == 2 * len(shown) + bool(
        shown and context.startswith(("The sections", "Between marks"))
    )
