"""What the present settings need, whether it works, and how to mend what does not."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table

from worker.budget.tokens import counter_for
from worker.errors import StoreUnavailable, Unavailable
from worker.logs import mask_url
from worker.usage.log import usage_log_path

if TYPE_CHECKING:
    from worker.graph.store import GraphStore
    from worker.ports import OutcomeStore
    from worker.state.store import StateStore
    from worker.wiring import Settings

PATIENCE_SECONDS: Final = 60.0
"""Of each check. What is away refuses at once; what works may answer late where the machine is busy."""
_ASKING: Final = ("worker.wiring_kafka", "worker.wiring_graph", "worker.wiring_state")
"""What the checks ask with: many modules, whose loading must not count as waiting for an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One dependency: what was found, and what to do where that is not good."""

    name: str
    is_ok: bool
    found: str
    mend: str = ""

    def as_dict(self) -> dict[str, object]:
        """For `--json`."""
        return asdict(self)


async def diagnose(settings: Settings) -> list[Finding]:
    """Check everything at once, each within `PATIENCE_SECONDS`, and report in a fixed order."""
    for module in _ASKING:
        import_module(module)
    checks: Sequence[Callable[[Settings], Awaitable[list[Finding]]]] = (
        _python,
        _tokenizers,
        _broker,
        _outcome_store,
        _graph_store,
        _state_store,
        _relevance,
        _source_roots,
        _usage_log,
        _drills,
        _doubts,
    )
    found = await asyncio.gather(*(check(settings) for check in checks))
    return [finding for findings in found for finding in findings]


def show(findings: Sequence[Finding]) -> Table:
    """A table for a person."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        fine = "[yellow]doubtful[/]" if finding.mend else "[green]ok[/]"
        mark = fine if finding.is_ok else "[red]wrong[/]"
        table.add_row(mark, finding.name, finding.found)
        if finding.mend:
            table.add_row("", "", f"[yellow]mend:[/] {finding.mend}")
    return table


def _too_late(name: str, where: str, mend: str) -> Finding:
    """What is found of a dependency that neither answered nor refused."""
    return Finding(
        name=name, is_ok=False, found=f"{where}: no answer within {PATIENCE_SECONDS:g} s", mend=mend
    )


async def _python(settings: Settings) -> list[Finding]:
    del settings
    return [
        Finding(
            name="python",
            is_ok=True,
            found=f"{platform.python_version()}, context-worker {version('context-worker')}",
        )
    ]


def _count_sample(encoding: str) -> int:
    return counter_for(encoding).count("context worker")


async def _tokenizers(settings: Settings) -> list[Finding]:
    findings: list[Finding] = []
    mend = "reinstall the packages (make setup), or correct content.models"
    for encoding in dict.fromkeys(row.encoding for row in settings.content.models.values()):
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                tokens = await asyncio.to_thread(_count_sample, encoding)
        except TimeoutError:
            findings.append(_too_late(f"tokenizer {encoding}", "its vocabulary", mend))
        except (OSError, ValueError) as error:
            findings.append(
                Finding(
                    name=f"tokenizer {encoding}",
                    is_ok=False,
                    found=str(error),
                    mend=mend,
                )
            )
        else:
            findings.append(
                Finding(
                    name=f"tokenizer {encoding}", is_ok=True, found=f"'context worker' is {tokens} tokens"
                )
            )
    return findings


async def _broker(settings: Settings) -> list[Finding]:
    from worker.wiring_kafka import broker_version  # noqa: PLC0415  # doctor must start where a part is broken

    servers = ", ".join(settings.kafka.bootstrap_servers)
    mend = f"start Kafka at {servers}, set WORKER_KAFKA__BOOTSTRAP_SERVERS, or use run --embedded"
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            found = await broker_version(settings)
    except TimeoutError:
        return [_too_late("broker", servers, mend)]
    except Unavailable as error:
        return [Finding(name="broker", is_ok=False, found=str(error), mend=mend)]
    return [Finding(name="broker", is_ok=True, found=f"{servers}: {found}")]


async def _outcome_store(settings: Settings) -> list[Finding]:
    from worker.wiring_kafka import build_store  # noqa: PLC0415  # as above

    outcomes = settings.outcomes
    if outcomes.store == "sqlite":
        where = str(outcomes.sqlite_path)
        mend = f"make {outcomes.sqlite_path.parent} writable, or set WORKER_OUTCOMES__SQLITE_PATH"
    else:
        where = mask_url(str(outcomes.redis_url))
        mend = "start Redis, or correct WORKER_OUTCOMES__REDIS_URL and its password"
    return await _store("outcome store", build_store(settings), f"{outcomes.store} at {where}", mend)


async def _graph_store(settings: Settings) -> list[Finding]:
    from worker.wiring_graph import build_graph_store  # noqa: PLC0415  # as above

    where, mend = _beside_graphs(settings, settings.graph.sqlite_path, "WORKER_GRAPH__SQLITE_PATH")
    return await _store("graph store", build_graph_store(settings), where, mend)


async def _state_store(settings: Settings) -> list[Finding]:
    from worker.wiring_state import build_state_store  # noqa: PLC0415  # as above

    where, mend = _beside_graphs(settings, settings.state.sqlite_path, "WORKER_STATE__SQLITE_PATH")
    if settings.outcomes.store == "redis":
        # Whether that one answers is told with the outcome store; without it state is only read more slowly.
        where += f", with copies in redis at {mask_url(str(settings.outcomes.redis_url))}"
    return await _store("state store", build_state_store(settings), where, mend)


def _beside_graphs(settings: Settings, sqlite_path: Path, variable: str) -> tuple[str, str]:
    """Where what is kept as graphs are lies, and how to mend it."""
    if settings.graph.store == "sqlite":
        return f"sqlite at {sqlite_path}", f"make {sqlite_path.parent} writable, or set {variable}"
    where = f"neo4j at {mask_url(str(settings.graph.neo4j_url))}"
    return where, "start Neo4j, or correct WORKER_GRAPH__NEO4J_URL, user and password"


async def _store(
    name: str, store: OutcomeStore | GraphStore | StateStore, found: str, mend: str
) -> list[Finding]:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await store.check()
    except TimeoutError:
        return [_too_late(name, found, mend)]
    except StoreUnavailable as error:
        return [Finding(name=name, is_ok=False, found=f"{found}: {error}", mend=mend)]
    finally:
        await store.close()
    return [Finding(name=name, is_ok=True, found=found)]


async def _relevance(settings: Settings) -> list[Finding]:
    """Needed only where the settings switch the rules on; a request may ask for them all the same."""
    from worker.wiring_graph import build_relevance  # noqa: PLC0415  # as above

    engine = build_relevance(settings)
    is_needed = settings.graph.relevance == "prolog"
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await engine.check()
    except TimeoutError:
        mend = "look why the process hangs, or set WORKER_GRAPH__PROLOG"
        late = _too_late("relevance rules", str(settings.graph.prolog), mend)
        return [late if is_needed else replace(late, is_ok=True)]
    except Unavailable as error:
        return [
            Finding(
                name="relevance rules",
                is_ok=not is_needed,
                found=f"{error}{'' if is_needed else ', which nothing here needs'}",
                mend="install swi-prolog-nox, or set WORKER_GRAPH__PROLOG" if is_needed else "",
            )
        ]
    finally:
        await engine.close()
    return [Finding(name="relevance rules", is_ok=True, found=f"{settings.graph.prolog} answers")]


async def _source_roots(settings: Settings) -> list[Finding]:
    roots = settings.content.roots
    if not roots:
        return [Finding(name="source roots", is_ok=True, found="none configured: the ast layer stays off")]
    return [
        Finding(name=f"source roots {project}", is_ok=True, found=str(path))
        if path.is_dir()
        else Finding(
            name=f"source roots {project}",
            is_ok=False,
            found=f"{path} is not a directory",
            mend="correct WORKER_CONTENT__ROOTS",
        )
        for project, paths in sorted(roots.items())
        for path in paths
    ]


async def _usage_log(settings: Settings) -> list[Finding]:
    del settings
    path = usage_log_path()
    home = _nearest_existing(path.parent)
    if os.access(path if path.exists() else home, os.W_OK):
        return [Finding(name="usage log", is_ok=True, found=str(path))]
    return [
        Finding(
            name="usage log",
            is_ok=False,
            found=f"{path} cannot be written",
            mend=f"make {home} writable, or set ORCHESTRATA_CONTEXT_USAGE_LOG",
        )
    ]


async def _drills(settings: Settings) -> list[Finding]:
    if not settings.failpoints:
        return []
    return [
        Finding(
            name="failpoints",
            is_ok=False,
            found=f"armed: {settings.failpoints}",
            mend="unset WORKER_FAILPOINTS unless this is a drill",
        )
    ]


async def _doubts(settings: Settings) -> list[Finding]:
    """Nothing that does not work, so none of them is wrong."""
    return [
        Finding(
            name=option,
            is_ok=True,
            found=reason,
            mend=f"set WORKER_{option.upper().replace('.', '__')}",
        )
        for option, reason in settings.doubts().items()
    ]


def _nearest_existing(path: Path) -> Path:
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
