"""Which version of each service, in one place; `compose.yaml` names the same, and a test compares."""

from __future__ import annotations

from typing import Final

KAFKA: Final = "4.3.1"
NEO4J: Final = "5.26.21"
# Debian decides which Redis the native runner gets: 12 has this one.
REDIS: Final = "7.0.15"
JAVA_AT_LEAST: Final = 17
MAVEN_DEPENDENCY_PLUGIN: Final = "3.8.1"
# Kafka logs through SLF4J and brings no binding: without one a start that fails says nothing.
SLF4J_SIMPLE: Final = "1.7.36"
