"""Wire models made from values that this program has made itself, and need not be checked again.

Validation is for what others send. What fusing and sealing have computed has its types already, and checking
a bundle's and a usage event's every field again costs a tenth of writing both down.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, TypeVar

from schemas.wire import WireModel

M = TypeVar("M", bound=WireModel)

_set: Final = object.__setattr__


def trusted(model: type[M], /, **values: Any) -> M:
    """The instance that `model(**values)` would be for values of the fields' own types; none is looked at.

    Raises TypeError where a required field is missing, or a name is no field.
    """
    defaults, required = _fields(model)
    fields = {**defaults, **values}
    if len(fields) != len(defaults) or not required <= values.keys():
        raise TypeError(f"{model.__name__} does not have exactly the fields {', '.join(values)}")
    made = model.__new__(model)
    # In the order of the model, which is the order on the wire.
    _set(made, "__dict__", fields)
    _set(made, "__pydantic_fields_set__", set(values))
    _set(made, "__pydantic_extra__", None)
    _set(made, "__pydantic_private__", None)
    return made


@lru_cache(maxsize=64)
def _fields(model: type[WireModel]) -> tuple[dict[str, Any], frozenset[str]]:
    """Every field in order with its default, None for one without; and the names of those without."""
    fields = model.model_fields
    required = frozenset(name for name, field in fields.items() if field.is_required())
    defaults = {
        name: None if name in required else field.get_default(call_default_factory=True)
        for name, field in fields.items()
    }
    return defaults, required
