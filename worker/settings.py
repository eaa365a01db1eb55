"""Every option of the worker, described. Environment variables: `WORKER_` and `__` between levels.

Example: `WORKER_KAFKA__BOOTSTRAP_SERVERS='["127.0.0.1:9092"]'`. Only the wiring reads these.
"""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_serializer, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from schemas.codes import LayerName, TaskType

_Secret = Annotated[SecretStr, Field(min_length=1)]
"""Never shown. Beside each stands a `…_file`, for those who do not want it in the environment."""


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="after")
    def _each_secret_comes_from_one_place(self) -> Self:
        for name in type(self).model_fields:
            if getattr(self, name) is not None and getattr(self, f"{name}_file", None) is not None:
                msg = f"{name} and {name}_file exclude each other"
                raise ValueError(msg)
        return self

    def refuse_idle(self, group: str, *fields: str, unless: str) -> None:
        """Raise ValueError where one of the fields was set although it has no effect."""
        idle = sorted(self.model_fields_set.intersection(fields))
        if idle:
            msg = f"{group}.{idle[0]} has no effect without {unless}; remove it"
            raise ValueError(msg)


class ModelRow(_Group):
    """One model: its window and how its tokens are counted."""

    window: int = Field(gt=0, description="Context window in tokens, the answer included.")
    encoding: str = Field(
        pattern=r"^(o200k_base|cl100k_base|bytes|file:.+)$",
        description="o200k_base, cl100k_base, bytes (an upper bound), or file:<path to tokenizer.json>.",
    )
    framing_tokens: int = Field(
        default=16, ge=0, description="What the chat template adds to a system and a user message, in tokens."
    )
    safety_factor: Decimal = Field(
        default=Decimal(1),
        ge=1,
        le=4,
        description="Counts are multiplied by this; for tokenizers not public.",
    )
    layers: dict[LayerName, Annotated[int, Field(ge=0)]] = Field(
        default={},
        description="Tokens that layers of this model reserve of the whole window, as JSON: the others share "
        'the rest, and a request has the last word. {"output": 32000} for a model that answers at length.',
    )

    @model_validator(mode="after")
    def _layers_fit(self) -> Self:
        if sum(self.layers.values()) > self.window:
            msg = f"layers reserve {sum(self.layers.values())} tokens of a window of {self.window}"
            raise ValueError(msg)
        return self


class SubjectRow(_Group):
    """One kind of work."""

    inject: bool = Field(description="Whether graph, semantic and template facts are wanted.")
    semantic: bool = Field(description="Whether chunks found by words are wanted.")
    task_type: TaskType = Field(description="Used where the message names no kind of work.")


def _default_models() -> dict[str, ModelRow]:
    # Windows and encodings as published by the vendors. Where a tokenizer is not public, o200k_base with
    # a factor that is meant to be safe rather than tight: measure yours, and set it here.
    return {
        "gpt-4o": ModelRow(window=128_000, encoding="o200k_base"),
        "gpt-4.1": ModelRow(window=1_047_576, encoding="o200k_base"),
        "gpt-4-turbo": ModelRow(window=128_000, encoding="cl100k_base"),
        "gpt-3.5-turbo": ModelRow(window=16_385, encoding="cl100k_base"),
        "claude": ModelRow(window=200_000, encoding="o200k_base", safety_factor=Decimal("1.35")),
        "generic-8k": ModelRow(window=8_192, encoding="bytes"),
    }


def _default_subjects() -> dict[str, SubjectRow]:
    return {
        "implement": SubjectRow(inject=True, semantic=True, task_type="BUILD"),
        "fix_issues": SubjectRow(inject=True, semantic=True, task_type="DEBUG"),
        "review_and_test": SubjectRow(inject=True, semantic=True, task_type="TEST"),
        "design_review": SubjectRow(inject=True, semantic=True, task_type="REVIEW"),
        "scope_review": SubjectRow(inject=True, semantic=False, task_type="REVIEW"),
        "ux_design": SubjectRow(inject=True, semantic=False, task_type="BUILD"),
        "chat": SubjectRow(inject=False, semantic=False, task_type="DOCUMENT"),
    }


class Kafka(_Group):
    """The broker, the group, and how much is in work at once."""

    bootstrap_servers: tuple[str, ...] = Field(
        default=("127.0.0.1:9092",), min_length=1, description="host:port of each broker to start from."
    )
    group_id: str = Field(default="context-worker", min_length=1, description="The consumer group.")
    topic_prefix: str = Field(
        default="context.", pattern=r"^[A-Za-z0-9._-]{0,100}$", description="In front of each topic name."
    )
    reply_topics: tuple[str, ...] = Field(
        default=(),
        description="Topics that a `reply_to` header may name beside the bundles topic. The worker does not "
        "create them; a reply to one that is missing goes to the bundles topic.",
    )
    idempotent_producer: bool = Field(
        default=True, description="Off only for brokers that lack it, as the embedded one does."
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="How to talk to the brokers."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="Used with a SASL protocol."
    )
    sasl_username: str | None = Field(default=None, description="Used with a SASL protocol.")
    sasl_password: _Secret | None = Field(default=None, description="Used with a SASL protocol.")
    sasl_password_file: Path | None = Field(
        default=None, description="Read at start instead of the password."
    )
    ssl_ca_file: Path | None = Field(default=None, description="CA certificates; the system's where absent.")
    ssl_certificate_file: Path | None = Field(
        default=None, description="Of this client, for brokers that ask for one; PEM, with its chain."
    )
    ssl_key_file: Path | None = Field(
        default=None, description="Its private key, unencrypted; where absent it stands in the same file."
    )
    replication_factor: int = Field(
        default=1, ge=1, description="Of topics that this worker creates: 3 on a cluster of three or more."
    )
    fetch_max_wait_ms: int = Field(default=100, gt=0, description="How long a fetch may wait for records.")
    max_in_flight: int = Field(default=64, gt=0, description="Records in work at once, all partitions.")
    max_in_flight_per_project: int = Field(
        default=16,
        gt=0,
        description="Requests, and tool calls, of one project in work at once: a flood of it leaves room.",
    )
    span_cap: int = Field(
        default=1_000,
        gt=0,
        description="A partition pauses when its first unfinished record lies this far behind the last.",
    )
    commit_seconds: float = Field(default=0.5, gt=0, description="Longest time between commits.")
    commit_records: int = Field(default=200, gt=0, description="Commit after this many finished records.")
    revoke_seconds: float = Field(
        default=3.0,
        gt=0,
        description="How long a revoked partition's work may still take; less where the session is too short "
        "for that and two commits.",
    )
    drain_seconds: float = Field(default=25.0, gt=0, description="How long SIGTERM waits for work in flight.")
    session_timeout_ms: int = Field(
        default=30_000, ge=1_000, description="A worker silent for longer loses its partitions."
    )

    @model_validator(mode="after")
    def _sasl_is_complete(self) -> Self:
        has_password = self.sasl_password is not None or self.sasl_password_file is not None
        if self.security_protocol.startswith("SASL"):
            if self.sasl_username is None or not has_password:
                msg = f"kafka.security_protocol {self.security_protocol} needs sasl_username and a password"
                raise ValueError(msg)
        elif self.sasl_username is not None or has_password:
            msg = f"kafka.sasl_* has no effect with security_protocol {self.security_protocol}; remove it"
            raise ValueError(msg)
        if not self.security_protocol.startswith("SASL"):
            self.refuse_idle("kafka", "sasl_mechanism", unless="a SASL security_protocol")
        if not self.security_protocol.endswith("SSL"):
            names = ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file")
            self.refuse_idle("kafka", *names, unless="security_protocol SSL or SASL_SSL")
        if self.ssl_certificate_file is None:
            self.refuse_idle("kafka", "ssl_key_file", unless="kafka.ssl_certificate_file")
        return self


_REDIS_URL: Final = re.compile(r"(?:rediss?|unix)://(?:[^/@:\s?]+@)?[^@\s?]*(?:\?(?!.*password=)[^\s@]*)?")


class Outcomes(_Group):
    """Where outcomes are kept, so that a request ends once."""

    store: Literal["sqlite", "redis"] = Field(
        default="sqlite", description="sqlite is one file on this host."
    )
    sqlite_path: Path = Field(default=Path("var/outcomes.db"), description="Used with store sqlite.")
    redis_url: str | None = Field(
        default=None,
        description="redis://[user@]host:port/db, rediss:// for TLS, or unix://; used with store redis.",
    )
    redis_password: _Secret | None = Field(default=None, description="Used with store redis.")
    redis_password_file: Path | None = Field(default=None, description="Read at start instead.")
    redis_ca_file: Path | None = Field(
        default=None, description="CA certificates for rediss://; the system's where absent."
    )
    key_prefix: str = Field(default="context", min_length=1, description="In front of each Redis key.")
    timeout_seconds: float = Field(
        default=1.0,
        gt=0,
        description="One store call; the driver's own default waits 4 to 9 s on a dead server.",
    )
    keep_seconds: int = Field(
        default=7_200,
        gt=0,
        description="How long bundles, receipts and captures are kept, for redelivery and for explanations.",
    )
    max_capture_bytes: int = Field(
        default=4_000_000,
        ge=0,
        description="Inputs of one bundle that are kept so that it can be made again, before compression; of "
        "larger ones only the receipt is kept, with 0 of all.",
    )
    forget_seconds: int = Field(default=172_800, gt=0, description="How long a repeat is told from a reuse.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        has_redis = any(
            v is not None
            for v in (self.redis_url, self.redis_password, self.redis_password_file, self.redis_ca_file)
        )
        if self.store == "redis" and self.redis_url is None:
            msg = "outcomes.store redis needs outcomes.redis_url"
            raise ValueError(msg)
        if self.redis_url is not None and not _REDIS_URL.fullmatch(self.redis_url):
            # Else it could show a password wherever the address is shown.
            msg = "outcomes.redis_url must be redis://, rediss:// or unix:// and a host, the password apart"
            raise ValueError(msg)
        if self.store == "sqlite" and has_redis:
            msg = "outcomes.redis_* has no effect with outcomes.store sqlite; set outcomes.store=redis"
            raise ValueError(msg)
        if self.store == "redis":
            self.refuse_idle("outcomes", "sqlite_path", unless="outcomes.store=sqlite")
        else:
            self.refuse_idle("outcomes", "key_prefix", unless="outcomes.store=redis")
        if not (self.redis_url or "").startswith("rediss:"):
            self.refuse_idle("outcomes", "redis_ca_file", unless="outcomes.redis_url rediss://")
        if self.forget_seconds < self.keep_seconds:
            msg = "outcomes.forget_seconds must not be below keep_seconds"
            raise ValueError(msg)
        return self

    @property
    def redis_address(self) -> str | None:
        """The URL with what TLS needs, as the driver reads it."""
        if self.redis_url is None or self.redis_ca_file is None:
            return self.redis_url
        between = "&" if "?" in self.redis_url else "?"
        return f"{self.redis_url}{between}ssl_ca_certs={quote(str(self.redis_ca_file))}"


class Limits(_Group):
    """What is refused, and what leaves the event loop."""

    max_request_bytes: int = Field(default=8_388_608, gt=0, description="A larger body is `too_large`.")
    max_depth: int = Field(default=64, gt=0, le=150, description="Nesting of the JSON body.")
    max_record_bytes: int = Field(
        default=900_000, gt=1_000, description="A larger bundle is stored, and a reference published."
    )
    abandoned_cap: int = Field(
        default=16, gt=0, description="Source calls left behind per layer before the source is not called."
    )
    max_source_bytes: int = Field(default=2_000_000, gt=0, description="A larger source file is refused.")
    strategy_seconds: float = Field(
        default=0.5, gt=0, description="A strategy plug-in that takes longer is ended; `layered` steps in."
    )


class Http(_Group):
    """Health, metrics, and bundles too large for a record."""

    host: str = Field(default="127.0.0.1", description="Anything but loopback needs a token.")
    port: int = Field(default=8_080, ge=0, le=65_535, description="0 takes a free one.")
    public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^@\s]+$",
        description="What BundleRef URLs start with; http://host:port where absent.",
    )
    token: _Secret | None = Field(default=None, description="Bearer token for /projects/...")
    token_file: Path | None = Field(default=None, description="Read at start instead.")

    @model_validator(mode="after")
    def _token_or_loopback(self) -> Self:
        if (
            self.host not in {"127.0.0.1", "::1", "localhost"}
            and self.token is None
            and self.token_file is None
        ):
            msg = f"http.host {self.host} is not loopback: set http.token or http.token_file"
            raise ValueError(msg)
        return self


class Answers(_Group):
    """What agents answer, and how often they may try."""

    max_attempts: int = Field(
        default=3,
        ge=1,
        le=10,
        description="Answers that one request may have; the last one that does not comply is escalated.",
    )
    max_bytes: int = Field(
        default=2_000_000,
        gt=0,
        description="A larger record is `too_large`; it is refused before it is looked at.",
    )


class Tools(_Group):
    """What agents may call on demand, over Kafka and over MCP."""

    budget_tokens: int = Field(
        default=4_000, gt=0, description="What one answer may take where the call does not say."
    )
    max_budget_tokens: int = Field(default=60_000, gt=0, description="And whatever a call says.")
    timeout_seconds: float = Field(
        default=10.0, gt=0, description="One call; a graph that is loaded for it may take most of that."
    )

    @model_validator(mode="after")
    def _default_is_within_the_maximum(self) -> Self:
        if self.budget_tokens > self.max_budget_tokens:
            raise ValueError("tools.budget_tokens is above tools.max_budget_tokens")
        return self


class Mcp(_Group):
    """The server of `context-worker mcp --http`."""

    host: str = Field(default="127.0.0.1", description="Anything but loopback needs a token.")
    port: int = Field(default=8_090, ge=0, le=65_535, description="0 takes a free one.")
    token: _Secret | None = Field(default=None, description="Bearer token that every request must bear.")
    token_file: Path | None = Field(default=None, description="Read at start instead.")

    @model_validator(mode="after")
    def _token_or_loopback(self) -> Self:
        has_token = self.token is not None or self.token_file is not None
        if self.host not in {"127.0.0.1", "::1", "localhost"} and not has_token:
            msg = f"mcp.host {self.host} is not loopback: set mcp.token or mcp.token_file"
            raise ValueError(msg)
        return self


class Content(_Group):
    """What shapes the bytes of a bundle."""

    default_model: str = Field(default="gpt-4o", description="Where a request names none.")
    models: dict[str, ModelRow] = Field(
        default_factory=_default_models, description="The model table, by name; replaces the built-in one."
    )
    subjects: dict[str, SubjectRow] = Field(
        default_factory=_default_subjects, description="The subjects table; replaces the built-in one."
    )
    strategy: str = Field(
        default="layered",
        min_length=1,
        description="Where a request names none; several joined with `+` share the budget.",
    )
    strategy_plugins: tuple[str, ...] = Field(
        default=(),
        description="Names of installed strategies (entry points `context_worker.strategies`) that requests "
        "may name. Each runs in a process of its own.",
    )
    roots: dict[str, tuple[Path, ...]] = Field(
        default_factory=dict, description="Source roots by project id; nothing outside them is read."
    )
    summary_tokens: int = Field(default=500, gt=0, description="Cap of the thread summary.")
    hot_hours: int = Field(
        default=24,
        ge=0,
        le=24 * 36_500,
        description="A stored fact, artifact or message is hot for so long after it was told or referred to.",
    )
    warm_days: int = Field(
        default=30, ge=0, le=36_500, description="And warm until then, by `as_of`; cold afterwards."
    )
    unmasked_projects: frozenset[str] = Field(
        default=frozenset(),
        description="Projects whose retrieved text is shown as it is; elsewhere what looks like a credential "
        "is masked.",
    )

    @field_serializer("unmasked_projects")
    def _in_order(self, value: frozenset[str]) -> list[str]:
        return sorted(value)

    @model_validator(mode="after")
    def _hot_is_not_longer_than_warm(self) -> Self:
        if self.hot_hours > 24 * self.warm_days:
            msg = f"content.hot_hours {self.hot_hours} is longer than warm_days {self.warm_days}"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _default_model_is_known(self) -> Self:
        if self.default_model not in self.models:
            msg = f"content.default_model {self.default_model!r} is not in content.models"
            raise ValueError(msg)
        return self


_NEO4J_URL: Final = re.compile(r"(?:bolt|neo4j)(?:\+s(?:sc)?)?://[^/@\s]+/?")


class Graph(_Group):
    """Where projects' graphs are kept, and how what is relevant in them is found."""

    store: Literal["sqlite", "neo4j"] = Field(
        default="sqlite", description="sqlite is one file on this host; several hosts share a Neo4j."
    )
    sqlite_path: Path = Field(default=Path("var/graph.db"), description="Used with store sqlite.")
    neo4j_url: str | None = Field(default=None, description="bolt:// or neo4j://; used with store neo4j.")
    neo4j_user: str = Field(default="neo4j", description="Used with store neo4j.")
    neo4j_password: _Secret | None = Field(default=None, description="Used with store neo4j.")
    neo4j_password_file: Path | None = Field(default=None, description="Read at start instead.")
    neo4j_ca_file: Path | None = Field(
        default=None, description="CA certificates for bolt+s:// or neo4j+s://; the system's where absent."
    )
    neo4j_database: str | None = Field(default=None, description="The server's default where absent.")
    max_snapshot_bytes: int = Field(
        default=600_000_000,
        gt=0,
        description="Graphs held in memory; of a larger one only what lies around the request is read.",
    )
    ranking: Literal["graph", "hop"] = Field(default="graph", description="Where a request names none.")
    relevance: Literal["off", "prolog"] = Field(default="off", description="Where a request names none.")
    prolog: str = Field(default="swipl", description="The SWI-Prolog program; started when first needed.")
    prolog_timeout_seconds: float = Field(default=0.4, gt=0, description="One refinement.")
    pack_cache: Literal["memory", "redis"] = Field(
        default="memory", description="Where packs are kept; redis uses the server of `outcomes`."
    )
    pack_cache_bytes: int = Field(default=64_000_000, gt=0, description="Used with pack_cache memory.")
    pack_keep_seconds: int = Field(default=3_600, gt=0, description="Used with pack_cache redis.")

    @model_validator(mode="after")
    def _no_option_without_effect(self) -> Self:
        has_neo4j = any(
            v is not None
            for v in (
                self.neo4j_url,
                self.neo4j_password,
                self.neo4j_password_file,
                self.neo4j_ca_file,
                self.neo4j_database,
            )
        )
        if self.store == "neo4j" and self.neo4j_url is None:
            msg = "graph.store neo4j needs graph.neo4j_url"
            raise ValueError(msg)
        if self.neo4j_url is not None and not _NEO4J_URL.fullmatch(self.neo4j_url):
            # The driver would refuse it too, and show a password that stands in it.
            msg = "graph.neo4j_url must be bolt:// or neo4j:// and a host, the user and password apart"
            raise ValueError(msg)
        if self.store == "sqlite" and has_neo4j:
            msg = "graph.neo4j_* has no effect with graph.store sqlite; set graph.store=neo4j"
            raise ValueError(msg)
        if self.store == "neo4j":
            self.refuse_idle("graph", "sqlite_path", unless="graph.store=sqlite")
        else:
            self.refuse_idle("graph", "neo4j_user", unless="graph.store=neo4j")
        if self.pack_cache == "redis":
            self.refuse_idle("graph", "pack_cache_bytes", unless="graph.pack_cache=memory")
        else:
            self.refuse_idle("graph", "pack_keep_seconds", unless="graph.pack_cache=redis")
        if self.neo4j_url is not None and "+s:" not in self.neo4j_url:
            self.refuse_idle("graph", "neo4j_ca_file", unless="graph.neo4j_url bolt+s:// or neo4j+s://")
        return self


class State(_Group):
    """What is known of projects and threads. It is kept where graphs are, as `graph.store` says.

    With `outcomes.store` redis that server holds a copy of what was read, which it may lose at any time.
    """

    sqlite_path: Path = Field(default=Path("var/state.db"), description="Used with graph.store sqlite.")
    max_bytes: int = Field(
        default=256_000_000, gt=0, description="State held in memory, by what it takes in the store."
    )
    hot_keep_seconds: int = Field(
        default=3_600, gt=0, description="How long Redis holds what was read; used with outcomes.store redis."
    )
    failure_days: int = Field(
        default=7, gt=0, description="A failure older than this, by `as_of`, is shown no more."
    )
    compact_after_days: int = Field(
        default=14,
        gt=7,
        description="Single events older than this are forgotten; what they came to stays. Longer than the "
        "state topic keeps them.",
    )


class Tracing(_Group):
    """Where spans go. Without an exporter none is recorded, and replies pass the caller's trace on."""

    exporter: Literal["none", "console", "file", "otlp"] = Field(
        default="none",
        description="`console` writes to standard error, `file` appends JSON lines, `otlp` posts to the "
        "collector that `otlp` names.",
    )
    file: Path = Field(default=Path("logs/spans.jsonl"), description="Used with exporter file.")
    ratio: float = Field(
        default=1.0, ge=0, le=1, description="Share of requests without a trace that are recorded."
    )

    prompts: bool = Field(
        default=False,
        description="Put the text of prompts on spans, 8,192 characters of each message.",
    )

    @model_validator(mode="after")
    def _no_option_without_effect(self) -> Tracing:
        if self.exporter == "none":
            self.refuse_idle("tracing", "ratio", "prompts", unless="tracing.exporter")
        if self.exporter != "file" and "file" in self.model_fields_set:
            raise ValueError("tracing.file has no effect unless tracing.exporter is file")
        return self


class Otlp(_Group):
    """A collector that takes spans and metrics, as OTLP over HTTP."""

    endpoint: str = Field(
        default="http://127.0.0.1:4318",
        pattern=r"^https?://[^@\s/?#]+(/[^@\s?#]*)?$",
        description="Its base; /v1/traces and /v1/metrics are added.",
    )
    token: _Secret | None = Field(default=None, description="Bearer token, where the collector asks for one.")
    token_file: Path | None = Field(default=None, description="Read at start instead.")
    ca_file: Path | None = Field(default=None, description="CA certificates; the system's where absent.")
    timeout_seconds: float = Field(
        default=30.0,
        gt=0,
        le=60,
        description="For one message, tries included; one that is not taken by then counts as failed.",
    )
    metrics: bool = Field(default=False, description="Push all metrics, beside serving /metrics.")
    metrics_seconds: float = Field(default=15.0, gt=0, description="Time between two pushes.")

    @model_validator(mode="after")
    def _no_option_without_effect(self) -> Otlp:
        if not self.metrics:
            self.refuse_idle("otlp", "metrics_seconds", unless="otlp.metrics")
        return self


_WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - looked for, not bound


class Settings(BaseSettings):
    """All options. Unknown names under a known group are refused."""

    model_config = SettingsConfigDict(
        env_prefix="WORKER_",
        env_nested_delimiter="__",
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,
    )

    kafka: Kafka = Kafka()
    outcomes: Outcomes = Outcomes()
    limits: Limits = Limits()
    http: Http = Http()
    tracing: Tracing = Tracing()
    otlp: Otlp = Otlp()
    graph: Graph = Graph()
    state: State = State()
    answers: Answers = Answers()
    tools: Tools = Tools()
    mcp: Mcp = Mcp()
    content: Content = Field(default_factory=Content)

    @model_validator(mode="after")
    def _state_is_where_graphs_are(self) -> Self:
        if self.graph.store == "neo4j":
            self.state.refuse_idle("state", "sqlite_path", unless="graph.store=sqlite")
        if self.outcomes.store == "sqlite":
            self.state.refuse_idle("state", "hot_keep_seconds", unless="outcomes.store=redis")
        return self

    @model_validator(mode="after")
    def _collector_is_used(self) -> Self:
        if self.tracing.exporter != "otlp" and not self.otlp.metrics:
            self.otlp.refuse_idle(
                "otlp",
                *("endpoint", "token", "token_file", "ca_file", "timeout_seconds"),
                unless="tracing.exporter=otlp or otlp.metrics",
            )
        return self

    @model_validator(mode="after")
    def _plugins_are_timed(self) -> Self:
        if not self.content.strategy_plugins:
            self.limits.refuse_idle("limits", "strategy_seconds", unless="content.strategy_plugins")
        return self

    @model_validator(mode="after")
    def _packs_have_a_server(self) -> Self:
        if self.graph.pack_cache == "redis" and self.outcomes.redis_url is None:
            msg = "graph.pack_cache redis needs outcomes.store=redis and outcomes.redis_url"
            raise ValueError(msg)
        return self

    failpoints: str = Field(
        default="", description="Drills: `point=hang|kill|raise[@text]; ...`. Never set in production."
    )
    log_format: Literal["console", "json"] = Field(default="console", description="How log lines look.")
    log_level: Annotated[str, Field(pattern=r"^(debug|info|warning|error)$")] = Field(
        default="info", description="The least severe line that is written."
    )

    def doubts(self) -> dict[str, str]:
        """What is allowed and yet is seldom meant, by the option that would mend it."""
        found: dict[str, str] = {}
        if self.outcomes.store == "redis" and self.graph.store == "sqlite":
            found["graph.store"] = (
                "outcomes.store=redis serves several hosts, while graph and state are files of this one: what"
                " workers on other hosts keep is not seen here; they need graph.store=neo4j"
            )
        if self.http.host in _WILDCARDS and self.http.public_url is None:
            found["http.public_url"] = (
                f"unset, so URLs of large bundles name {self.http.host or 'no host'}, where nobody finds this"
                " worker"
            )
        return found


def read_secret(value: SecretStr | None, file: Path | None) -> str | None:
    """The value, else the file's first line; None where there is neither.

    Raises ValueError naming a file that cannot be read, or whose first line is empty.
    """
    if value is not None:
        return value.get_secret_value()
    if file is None:
        return None
    try:
        secret = file.read_text().split("\n", 1)[0].rstrip("\r")
    except OSError as error:
        raise ValueError(f"cannot read the secret file {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        # The error itself shows what stands there.
        raise ValueError(f"the secret file {file} is no text") from None
    if not secret:
        # An empty token would let everybody in.
        raise ValueError(f"the secret file {file} begins with an empty line")
    return secret
