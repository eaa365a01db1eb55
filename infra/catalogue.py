"""The services: how each is prepared, configured, started, asked whether it is ready, and addressed."""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import certificates
import jvm
import probes
import versions
from certificates import Certificates
from provision import call

NEO4J_SOURCE: Final = Path(__file__).with_name("Neo4jServer.java")
USER: Final = "worker"
"""Who may come in through a secured door, with the service's password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one instance of a service lives, and what tells it from others."""

    folder: Path
    ports: Mapping[str, int]
    password: str

    @property
    def data(self) -> Path:
        """Kept by `stop` and `start`, removed by `down`."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """The output of the process."""
        return self.folder / "output.log"

    def certificates(self) -> Certificates:
        """The certificates of its secured door, made at the first call. Raises ServiceError."""
        return certificates.issued(self.folder / "certificates", log=self.log)

    def secured(self, name: str) -> dict[str, str]:
        """The variables of a secured door; none where an older runner started the service without one."""
        if "secured" not in self.ports:
            return {}
        return {
            f"CONTEXT_TEST_{name}_SECURED": f"{certificates.HOST}:{self.ports['secured']}",
            f"CONTEXT_TEST_{name}_CERTIFICATES": str(self.certificates().folder),
            f"CONTEXT_TEST_{name}_PASSWORD": self.password,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to run, and what the process sees beside the runner's own environment."""

    command: list[str | Path]
    environment: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A server that the runner starts and stops. The first port is the one that clients use."""

    name: str
    version: str
    packages: Mapping[str, str]
    """Debian packages by the program that is looked for."""
    ports: tuple[str, ...]
    prepare: Callable[[], object]
    """Download and build what is cached. Raises ServiceError."""
    launch: Callable[[Place], Launch]
    """Write the configuration and make the data folder usable. Raises ServiceError."""
    is_ready: Callable[[Place], bool]
    """Ask once. Raises OSError while nobody listens."""
    exports: Callable[[Place], dict[str, str]]
    """The variables that tests read."""


def _kafka_jars() -> list[Path]:
    kafka = f"org.apache.kafka:kafka_2.13:{versions.KAFKA}"
    binding = f"org.slf4j:slf4j-simple:{versions.SLF4J_SIMPLE}"
    return jvm.jars("kafka", versions.KAFKA, (kafka, binding))


def _launch_kafka(place: Place) -> Launch:
    properties = _private(place.folder / "server.properties", _kafka_properties(place))
    log_level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    java = [jvm.java(), *jvm.OPTIONS, log_level, "-cp", jvm.join(_kafka_jars())]
    if not (place.data / "meta.properties").exists():
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        users = _private(place.folder / "users", _kafka_users(place))
        storage = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", properties]
        call([*java, *storage, f"@{users}"], log=place.log)
    return Launch(command=[*java, "kafka.Kafka", properties])


def _kafka_users(place: Place) -> str:
    """More arguments of the storage tool, one a line: not on its command line, which everybody can read."""
    mechanisms = ("SCRAM-SHA-256", "SCRAM-SHA-512")
    return "".join(f"-S\n{name}=[name={USER},password={place.password}]\n" for name in mechanisms)


def _kafka_secured(place: Place) -> dict[str, object]:
    """A door for users with passwords, one for clients with certificates."""
    made, modules = place.certificates(), "org.apache.kafka.common.security"
    plain = f'{modules}.plain.PlainLoginModule required user_{USER}="{place.password}";'
    scram = f"{modules}.scram.ScramLoginModule required;"
    stores = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": _one_line(made.key("server")),
        "ssl.keystore.certificate.chain": _one_line(made.certificate("server")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": _one_line(made.authority),
    }
    return {
        **stores,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.secured.plain.sasl.jaas.config": plain,
        "listener.name.secured.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.secured.scram-sha-512.sasl.jaas.config": scram,
        "listener.name.mutual.ssl.client.auth": "required",
    }


def _one_line(pem: Path) -> str:
    """A PEM file as a value of a properties file."""
    return pem.read_text().strip().replace("\n", "\\n")


def _kafka_properties(place: Place) -> str:
    """One broker that is its own controller."""
    broker = ",".join(
        (
            f"BROKER://127.0.0.1:{place.ports['broker']}",
            f"SECURED://{certificates.HOST}:{place.ports['secured']}",
            f"MUTUAL://{certificates.HOST}:{place.ports['mutual']}",
        )
    )
    controller = f"127.0.0.1:{place.ports['controller']}"
    security = "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SASL_SSL,MUTUAL:SSL"
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{controller}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "BROKER",
        "listeners": f"{broker},CONTROLLER://{controller}",
        "advertised.listeners": broker,
        "listener.security.protocol.map": security,
        **_kafka_secured(place),
        "log.dirs": place.data,
        # The worker creates its topics from its own table; a misspelt name has to fail.
        "auto.create.topics.enable": "false",
        # Nobody waits three seconds for members that will not come.
        "group.initial.rebalance.delay.ms": 0,
        # Whoever kills a worker waits for its session, at least six seconds unless this says otherwise.
        "group.min.session.timeout.ms": 2_000,
        # A single broker can hold one copy of anything.
        "default.replication.factor": 1,
        "min.insync.replicas": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "num.network.threads": 2,
        "num.io.threads": 2,
    }
    for internal in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        settings[f"{internal}.replication.factor"] = 1
        # The default of 50 partitions costs a new broker seconds at its first consumer group.
        settings[f"{internal}.num.partitions"] = 4
    return _lines(settings, "=")


def _neo4j_library() -> list[Path]:
    neo4j = jvm.jars("neo4j", versions.NEO4J, (f"org.neo4j:neo4j:{versions.NEO4J}",))
    return [jvm.compiled(NEO4J_SOURCE, library=neo4j), *neo4j]


def _neo4j_archive() -> Path:
    def train(scratch: Path, java: list[str | Path]) -> list[str | Path]:
        place = Place(folder=scratch, ports={"bolt": 0}, password=secrets.token_hex())
        return ["env", f"NEO4J_PASSWORD={place.password}", *java, *_neo4j_server(place), "once"]

    return jvm.class_archive("neo4j", library=_neo4j_library(), train=train)


def _launch_neo4j(place: Place) -> Launch:
    archive = f"-XX:SharedArchiveFile={_neo4j_archive()}"
    java = [jvm.java(), *jvm.OPTIONS, archive, "-cp", jvm.join(_neo4j_library())]
    # Not an argument: every user of the machine can read those.
    return Launch(command=[*java, *_neo4j_server(place)], environment={"NEO4J_PASSWORD": place.password})


def _neo4j_server(place: Place) -> list[str | Path]:
    configuration = place.folder / "neo4j.conf"
    configuration.write_text(_neo4j_configuration(place))
    packages = ("java.lang", "java.nio", "java.io", "java.util.concurrent", "sun.nio.ch")
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in packages]
    return [*opened, NEO4J_SOURCE.stem, place.data, configuration]


def _neo4j_configuration(place: Place) -> str:
    """Reached by Bolt alone, with authentication."""
    made = place.certificates()
    settings: dict[str, object] = {
        "server.bolt.enabled": "true",
        "server.bolt.listen_address": f"127.0.0.1:{place.ports['bolt']}",
        "server.http.enabled": "false",
        "dbms.security.auth_enabled": "true",
        # The same port, with or without TLS.
        "server.bolt.tls_level": "OPTIONAL",
        "dbms.ssl.policy.bolt.enabled": "true",
        "dbms.ssl.policy.bolt.base_directory": made.folder,
        "dbms.ssl.policy.bolt.private_key": made.key("server"),
        "dbms.ssl.policy.bolt.public_certificate": made.certificate("server"),
        "dbms.ssl.policy.bolt.client_auth": "NONE",
        # The runner asks before the password is set; that must not lock the user out.
        "dbms.security.auth_max_failed_attempts": 0,
        "dbms.usage_report.enabled": "false",
        "server.memory.pagecache.size": "64m",
        # Else each database takes 256 MB of disk before it holds anything.
        "db.tx_log.preallocate": "false",
        # Else it waits ten seconds at its end for connections that have gone.
        "internal.dbms.bolt.netty_server_shutdown_quiet_period": 0,
        "internal.dbms.bolt.netty_server_shutdown_timeout": "1s",
    }
    return _lines(settings, "=")


def _launch_redis(place: Place) -> Launch:
    """Outcomes live nowhere else: it evicts nothing and writes each change to disk."""
    made = place.certificates()
    settings: dict[str, object] = {
        "bind": "127.0.0.1",
        "port": place.ports["redis"],
        "tls-port": place.ports["secured"],
        "tls-cert-file": made.certificate("server"),
        "tls-key-file": made.key("server"),
        "tls-ca-cert-file": made.authority,
        "tls-auth-clients": "no",
        # No more than the worker needs, so that a command that it should not need is refused in the tests.
        f"user {USER}": f"on >{place.password} ~* &* +@all -@admin -@dangerous",
        "dir": place.data,
        "maxmemory-policy": "noeviction",
        "appendonly": "yes",
        "save": '""',
    }
    configuration = _private(place.folder / "redis.conf", _lines(settings, " "))
    return Launch(command=["redis-server", configuration])


def _private(path: Path, text: str) -> Path:
    """The file, written so that only its owner reads it: it holds a password."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _lines(settings: Mapping[str, object], between: str) -> str:
    return "".join(f"{key}{between}{value}\n" for key, value in settings.items())


def _mutual(place: Place) -> dict[str, str]:
    port = place.ports.get("mutual")
    return {} if port is None else {"CONTEXT_TEST_KAFKA_MUTUAL": f"{certificates.HOST}:{port}"}


_SERVICES: Final = (
    Service(
        name="redis",
        version=versions.REDIS,
        packages={"redis-server": "redis-server", **certificates.PACKAGES},
        ports=("redis", "secured"),
        prepare=lambda: None,  # Debian's package is all
        launch=_launch_redis,
        is_ready=lambda place: probes.redis_answers(place.ports["redis"]),
        exports=lambda place: {
            "CONTEXT_TEST_REDIS": f"redis://127.0.0.1:{place.ports['redis']}/0",
            **place.secured("REDIS"),
        },
    ),
    Service(
        name="neo4j",
        version=versions.NEO4J,
        packages={**jvm.PACKAGES, **certificates.PACKAGES},
        ports=("bolt",),
        prepare=_neo4j_archive,
        launch=_launch_neo4j,
        is_ready=lambda place: probes.neo4j_answers(place.ports["bolt"], password=place.password),
        exports=lambda place: {
            "CONTEXT_TEST_NEO4J": f"bolt://127.0.0.1:{place.ports['bolt']}",
            "CONTEXT_TEST_NEO4J_PASSWORD": place.password,
            "CONTEXT_TEST_NEO4J_CERTIFICATES": str(place.folder / "certificates"),
        },
    ),
    Service(
        name="kafka",
        version=versions.KAFKA,
        packages={**jvm.PACKAGES, **certificates.PACKAGES},
        ports=("broker", "controller", "secured", "mutual"),
        prepare=_kafka_jars,
        launch=_launch_kafka,
        is_ready=lambda place: probes.kafka_answers(place.ports["broker"]),
        exports=lambda place: {
            "CONTEXT_TEST_KAFKA": f"127.0.0.1:{place.ports['broker']}",
            **place.secured("KAFKA"),
            **_mutual(place),
        },
    ),
)

# In the order of starting: Neo4j takes longest, and Kafka's storage is formatted meanwhile.
SERVICES: Final[Mapping[str, Service]] = {service.name: service for service in _SERVICES}

# Programs without a server of their own, by the Debian package that brings them.
TOOLS: Final[Mapping[str, str]] = {
    "swipl": "swi-prolog-nox",
    "chromium": "chromium",
    "promtool": "prometheus",
}


def worker_settings(exports: Mapping[str, str]) -> dict[str, str]:
    """The settings with which a worker runs on what these variables tell of."""
    found: dict[str, str] = {}
    if kafka := exports.get("CONTEXT_TEST_KAFKA"):
        found["WORKER_KAFKA__BOOTSTRAP_SERVERS"] = json.dumps([kafka])
    if redis := exports.get("CONTEXT_TEST_REDIS"):
        found |= {
            "WORKER_OUTCOMES__STORE": "redis",
            "WORKER_OUTCOMES__REDIS_URL": redis,
            "WORKER_GRAPH__PACK_CACHE": "redis",
        }
    if neo4j := exports.get("CONTEXT_TEST_NEO4J"):
        found |= {
            "WORKER_GRAPH__STORE": "neo4j",
            "WORKER_GRAPH__NEO4J_URL": neo4j,
            "WORKER_GRAPH__NEO4J_PASSWORD": exports["CONTEXT_TEST_NEO4J_PASSWORD"],
        }
    if swipl := exports.get("CONTEXT_TEST_SWIPL"):
        found["WORKER_GRAPH__PROLOG"] = swipl
    return found


def tool_exports() -> dict[str, str]:
    """The variables that tests read, for the tools that are there."""
    found = {tool: shutil.which(tool) for tool in TOOLS}
    return {f"CONTEXT_TEST_{tool.upper()}": path for tool, path in found.items() if path is not None}
