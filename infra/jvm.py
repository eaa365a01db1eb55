"""What the two Java services share: the runtime, jars from Maven, compiling, a class archive."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import versions
from provision import ServiceError, cached, call, say

PACKAGES: Final = {"java": "default-jre-headless", "mvn": "maven"}

# Small and quick to start rather than fast at the peak: one person's tests, on a machine with other work.
OPTIONS: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PLUGIN: Final = f"org.apache.maven.plugins:maven-dependency-plugin:{versions.MAVEN_DEPENDENCY_PLUGIN}"


def java() -> Path:
    """The first Java on the path. Raises ServiceError when it is missing or too old."""
    path = Path(shutil.which("java") or "java")
    version = _java_version(path)
    if int(version.split(".")[0]) < versions.JAVA_AT_LEAST:
        raise ServiceError(
            f"{path} is Java {version}; Kafka and Neo4j need {versions.JAVA_AT_LEAST} or newer"
        )
    return path


@cache
def _java_version(path: Path) -> str:
    said = subprocess.run([path, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "([^"]+)"', said)
    if found is None:
        raise ServiceError(f"{path} -version does not say which Java it is: {said.strip()!r}")
    return found[1]


def jars(name: str, version: str, coordinates: Iterable[str]) -> list[Path]:
    """The jars of each `group:artifact:version` with all that it needs to run, always in one order."""
    pom = _pom(coordinates)

    def build(folder: Path) -> None:
        say(f"{name}: downloading {version} and what it needs")
        (folder / "pom.xml").write_text(pom)
        # A repository of its own: two Maven processes must not write to one at the same time.
        repository = folder / "repository"
        options = ["--batch-mode", "--strict-checksums", f"-Dmaven.repo.local={repository}"]
        goal = [f"{_PLUGIN}:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=lib"]
        call(["mvn", *options, *goal], log=folder / "maven.log", cwd=folder)
        shutil.rmtree(repository)

    folder = cached(f"{name}-{version}", recipe=pom + _PLUGIN, build=build)
    return sorted((folder / "lib").glob("*.jar"))


def _pom(coordinates: Iterable[str]) -> str:
    def element(name: str, *content: str, **fields: str) -> str:
        inside = "".join(content) + "".join(element(key, value) for key, value in fields.items())
        return f"<{name}>{inside}</{name}>"

    split = [coordinate.split(":") for coordinate in coordinates]
    dependencies = [element("dependency", groupId=g, artifactId=a, version=v) for g, a, v in split]
    project = {"modelVersion": "4.0.0", "groupId": "local", "artifactId": "services", "version": "1"}
    return element("project", element("dependencies", *dependencies), **project, packaging="pom")


def compiled(source: Path, *, library: Sequence[Path]) -> Path:
    """A jar with the classes of one Java file."""
    name = source.stem

    def build(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as classes:
            # A Java runtime without the program `javac` still has the compiler as a module.
            compiler = [java(), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-d", classes]
            call([*compiler, "-cp", join(library), source], log=folder / "javac.log")
            # A class archive accepts jars on the class path, but no folders.
            with zipfile.ZipFile(folder / f"{name}.jar", "w") as jar:
                for path in sorted(Path(classes).rglob("*.class")):
                    jar.write(path, path.relative_to(classes))

    recipe = source.read_text() + join(library) + _java_version(java())
    return cached(name, recipe=recipe, build=build) / f"{name}.jar"


def class_archive(
    name: str, *, library: Sequence[Path], train: Callable[[Path, list[str | Path]], list[str | Path]]
) -> Path:
    """An archive of loaded classes for `library`: starting from it takes half the processor time.

    `train(scratch, java)` gives the command of a run that ends by itself, beginning with `java`.
    """

    def build(folder: Path) -> None:
        say(f"{name}: preparing a class archive, once")
        with tempfile.TemporaryDirectory() as scratch:
            recording = [java(), f"-XX:ArchiveClassesAtExit={folder / 'classes.jsa'}"]
            command = train(Path(scratch), [*recording, *OPTIONS, "-cp", join(library)])
            call(command, log=folder / "training.log")

    return (
        cached(f"{name}-classes", recipe=join(library) + _java_version(java()), build=build) / "classes.jsa"
    )


def join(library: Iterable[Path]) -> str:
    """A class path as Java wants it."""
    return os.pathsep.join(str(path) for path in library)
