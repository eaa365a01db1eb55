from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from schemas.wire import WireModel

ROOT = Path(__file__).parents[3]


class Lamp(WireModel):
    bright: bool
    """Whether it shines.

    In the dark."""
    watts: int = 0
    "And no more."
    colour: str = "white"


class Torch(Lamp):
    """A lamp to carry."""

    watts: int = 1
    """From the battery."""
    hands: int = 1


def test_what_stands_below_a_field_describes_it_also_where_it_was_inherited():
    described = Torch.model_json_schema()["properties"]
    assert {name: field.get("description") for name, field in described.items()} == {
        "bright": "Whether it shines.\n\nIn the dark.",
        "watts": "From the battery.",
        "colour": None,
        "hands": None,
    }


def test_validators_are_built_at_first_use_or_all_at_once():
    program = """
from schemas.wire import WireModel, build_validators
import schemas.tools, schemas.topics

def models(base):
    for model in base.__subclasses__():
        yield model
        yield from models(model)

assert not schemas.topics.AssemblyRequest.__pydantic_complete__
schemas.topics.AssemblyRequest.model_validate(
    {"request_id": "r", "project_id": "p", "volk": "v", "subject": "s", "user_message": "m"}
)
assert schemas.topics.AssemblyRequest.__pydantic_complete__
assert not schemas.tools.ToolRequest.__pydantic_complete__
build_validators()
assert all(model.__pydantic_complete__ for model in models(WireModel))
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
