"""What crosses the wire: frozen pydantic models, one file per subject.

Open `schemas.request` and `schemas.bundle` first. JSON Schema and AsyncAPI documents are generated
from these models into `schemas/json/` and `schemas/asyncapi.json`.
"""
