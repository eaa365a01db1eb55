"""The names that OpenTelemetry's semantic conventions give, of one version; no other module spells them.

Those of `gen_ai` moved to conventions of their own, where they are the same; this version marks them so.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "1.44.0"
SCHEMA_URL: Final = f"https://opentelemetry.io/schemas/{VERSION}"

SERVICE_NAME: Final = "service.name"
SERVICE_VERSION: Final = "service.version"
SERVICE_INSTANCE_ID: Final = "service.instance.id"

ERROR_TYPE: Final = "error.type"

MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_OPERATION_NAME: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION_NAME: Final = "messaging.destination.name"
MESSAGING_DESTINATION_PARTITION_ID: Final = "messaging.destination.partition.id"
MESSAGING_KAFKA_OFFSET: Final = "messaging.kafka.offset"
MESSAGING_MESSAGE_BODY_SIZE: Final = "messaging.message.body.size"
MESSAGING_MESSAGE_CONVERSATION_ID: Final = "messaging.message.conversation_id"
"""The correlation id."""

GEN_AI_AGENT_NAME: Final = "gen_ai.agent.name"
"""The volk that the prompt is for."""
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"
"""The thread."""
GEN_AI_INPUT_MESSAGES: Final = "gen_ai.input.messages"
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
"""What is reserved for the answer."""
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
GEN_AI_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
"""The recount of the whole prompt."""
