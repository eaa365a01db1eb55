"""Front matter is what PyYAML would have written, whatever stands in it."""

from __future__ import annotations

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from worker.graph.front_matter import Frame, Scalar, front_matter

AWKWARD = ("no", "On", "null", "~", "y", "1e3", "0x1f", "12_3", "0b01", "1.5", "a: b", "a #b", "[", "-", "'")
DIGESTS = ("0123456789012345", "012e456789012345", "0000000000000000", "1234567890e12345", "fade000011112222")
WORDS = st.one_of(
    st.sampled_from((*AWKWARD, *DIGESTS)),
    st.from_regex(r"[A-Za-z_0-9./]{1,12}", fullmatch=True),
    st.text("0123456789abcdef_.", min_size=1, max_size=16),
    st.text(min_size=1, max_size=12),
)


def dumped(fields: dict[str, Scalar | Frame]) -> str:
    return yaml.dump(
        fields,
        Dumper=yaml.CSafeDumper,
        sort_keys=False,
        allow_unicode=True,
        width=10_000,
        default_flow_style=None,
    )


@settings(max_examples=100)
@given(WORDS, WORDS, WORDS, st.lists(WORDS, max_size=3))
@example("shop", "DEBUG", "fade000011112222", [])
@example("1", "on", "0123456789012345", ["load_cart", "shop/cart.py", "Off"])
def test_it_is_what_a_dump_of_all_fields_together_gives(
    project: str, task: str, digest: str, mentions: list[str]
) -> None:
    frame: Frame = {"task_type": task, "text": digest, "entities": mentions}
    fields: dict[str, Scalar | Frame] = {"project": project, "frame": frame, "budget": 8_000, "spent": 0}
    assert front_matter(fields) == dumped(fields)


def test_a_frame_of_words_alone_stands_on_its_line() -> None:
    fields: dict[str, Scalar | Frame] = {"pack_version": "1", "frame": {"requester": "volk"}, "reason": "x"}
    assert front_matter(fields) == dumped(fields)
