from __future__ import annotations

import errno
import gc
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.code import sources
from worker.code.sources import (
    MAX_SOURCE_BYTES,
    Missing,
    RefusalReason,
    Refused,
    SourceFile,
    SourceRoots,
    SourceTree,
)
from worker.errors import Unavailable

SECRET = b"# nobody may read this\n"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with some of everything in it, and a secret beside it."""
    base = tmp_path_factory.mktemp("sources")
    root = base / "root"
    (root / "pkg" / "sub").mkdir(parents=True)
    (base / "secret.py").write_bytes(SECRET)
    (root / "a.py").write_bytes(b"x = 1\n")
    (root / "pkg" / "b.py").write_bytes(b"y = 2\n")
    (root / "empty.py").touch()
    (root / "link.py").symlink_to("../secret.py")
    (root / "inside.py").symlink_to("a.py")
    (root / "absolute.py").symlink_to(base / "secret.py")
    (root / "dangling.py").symlink_to("nowhere.py")
    (root / "loop").symlink_to("loop")
    (root / "out").symlink_to("..")
    (root / "in").symlink_to("pkg")
    os.mkfifo(root / "fifo.py")
    with socket.socket(socket.AF_UNIX) as server:
        # The name of a socket may be 107 bytes long at most, so it is bound from where it stands.
        before = Path.cwd()
        os.chdir(root)
        server.bind("socket.py")
        os.chdir(before)
    with (root / "sparse.py").open("wb") as file:
        file.truncate(100_000_000)
    return base


@pytest.fixture
def tree(base: Path) -> Iterator[SourceTree]:
    with opened(base / "root") as tree:
        yield tree


def opened(root: Path, project_dir: str | None = None, *, max_bytes: int = MAX_SOURCE_BYTES) -> SourceTree:
    tree = SourceRoots({"p": [root]}).open("p", project_dir, max_bytes=max_bytes)
    assert isinstance(tree, SourceTree)
    return tree


def test_a_file_is_read_under_one_spelling_of_its_path(tree: SourceTree) -> None:
    found = tree.read("./pkg//b.py")
    assert isinstance(found, SourceFile)
    assert (found.path, found.content) == ("pkg/b.py", b"y = 2\n")
    assert found == tree.read("pkg/./b.py")


def test_an_empty_file_is_a_file(tree: SourceTree) -> None:
    found = tree.read("empty.py")
    assert isinstance(found, SourceFile)
    assert found.content == b""


REFUSED: list[tuple[str, RefusalReason]] = [
    ("", "empty path"),
    ("./", "empty path"),
    ("/etc/passwd", "absolute path"),
    ("../secret.py", "leaves the project"),
    ("pkg/../a.py", "leaves the project"),
    ("pkg/..", "leaves the project"),
    ("a\0.py", "control character"),
    ("a\n.py", "control character"),
    ("a\u2028.py", "control character"),
    ("\ud800.py", "not a file name"),
    ("\udc80.py", "not a file name"),
    ("x" * 300 + ".py", "not a file name"),
    ("x" * 5_000, "not a file name"),
    ("a/" * 65 + "b.py", "nested too deeply"),
    ("link.py", "symbolic link"),
    ("inside.py", "symbolic link"),
    ("absolute.py", "symbolic link"),
    ("dangling.py", "symbolic link"),
    ("loop", "symbolic link"),
    ("loop/a.py", "symbolic link"),
    ("out/secret.py", "symbolic link"),
    ("out/root/a.py", "symbolic link"),
    ("in/b.py", "symbolic link"),
    ("fifo.py", "not a regular file"),
    ("socket.py", "not a regular file"),
    ("pkg", "not a regular file"),
    ("sparse.py", "too large"),
]


@pytest.mark.parametrize(("path", "reason"), REFUSED)
def test_what_is_not_a_file_below_the_root_is_refused(
    tree: SourceTree, path: str, reason: RefusalReason
) -> None:
    assert tree.read(path) == Refused(path, reason)


@pytest.mark.parametrize("path", ["nowhere.py", "pkg/nowhere/b.py", "a.py/b.py", "fifo.py/b.py"])
def test_what_is_not_there_is_missing(tree: SourceTree, path: str) -> None:
    assert tree.read(path) == Missing(path)


def test_a_device_is_refused_without_being_opened() -> None:
    with opened(Path("/dev")) as tree:
        assert tree.read("zero") == Refused("zero", "not a regular file")


def test_a_file_that_the_kernel_makes_up_is_refused() -> None:
    with opened(Path("/proc/self")) as tree:
        assert tree.read("status") == Refused("status", "not a regular file")
        # A link of the kernel's that leads anywhere at all.
        assert tree.read("root/etc/passwd") == Refused("root/etc/passwd", "symbolic link")


def test_the_size_limit_is_the_last_size_that_is_read(base: Path) -> None:
    with opened(base / "root", max_bytes=6) as tree:
        assert isinstance(tree.read("a.py"), SourceFile)
    with opened(base / "root", max_bytes=5) as tree:
        assert tree.read("a.py") == Refused("a.py", "too large")


def test_a_file_that_grows_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"x = 1\n")
    found = path.stat()
    path.write_bytes(b"x = 1\n" * 100)
    monkeypatch.setattr(os, "fstat", lambda _descriptor: found)  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]  # what was seen just before
    with opened(tmp_path, max_bytes=50) as tree:
        assert tree.read("a.py") == Refused("a.py", "too large")


@pytest.mark.parametrize(
    ("code", "reason"), [(errno.EACCES, "permission denied"), (errno.EMFILE, "cannot be read")]
)
def test_a_file_that_cannot_be_opened_is_refused(
    tree: SourceTree, monkeypatch: pytest.MonkeyPatch, code: int, reason: RefusalReason
) -> None:
    # Root may open everything, so the answer is given in the system's place.
    def fail(*_arguments: object, **_options: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", fail)
    assert tree.read("a.py") == Refused("a.py", reason)


def test_a_file_that_becomes_a_link_between_two_reads_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret.py").write_bytes(SECRET)
    path = tmp_path / "root" / "a.py"
    path.write_bytes(b"x = 1\n")
    with opened(tmp_path / "root") as tree:
        assert isinstance(tree.read("a.py"), SourceFile)
        path.unlink()
        path.symlink_to("../secret.py")
        assert tree.read("a.py") == Refused("a.py", "symbolic link")


@pytest.mark.parametrize(("kind", "reason"), [("link", "symbolic link"), ("fifo", "not a regular file")])
def test_a_file_swapped_after_it_was_looked_at_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, reason: RefusalReason
) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret.py").write_bytes(SECRET)
    path = tmp_path / "root" / "a.py"
    path.write_bytes(b"x = 1\n")
    describe = sources._describe  # pyright: ignore[reportPrivateUsage]  # the moment between look and use

    def describe_then_swap(name: str, directory: int) -> os.stat_result:
        found = describe(name, directory)
        path.unlink()
        if kind == "link":
            path.symlink_to("../secret.py")
        else:
            os.mkfifo(path)
        return found

    monkeypatch.setattr(sources, "_describe", describe_then_swap)
    with opened(tmp_path / "root") as tree:
        assert tree.read("a.py") == Refused("a.py", reason)


def test_a_folder_swapped_for_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root" / "pkg").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a.py").write_bytes(SECRET)
    with opened(tmp_path / "root") as tree:
        assert tree.read("pkg/a.py") == Missing("pkg/a.py")
        (tmp_path / "root" / "pkg").rmdir()
        (tmp_path / "root" / "pkg").symlink_to("../secret")
        assert tree.read("pkg/a.py") == Refused("pkg/a.py", "symbolic link")


NAMES = st.sampled_from(
    ["..", ".", "", "a.py", "pkg", "b.py", "out", "in", "loop", "root", "secret.py", "link.py", "absolute.py"]
) | st.text(max_size=6)


@settings(max_examples=300)
@given(names=st.lists(NAMES, min_size=1, max_size=8), prefix=st.sampled_from(["", "/", "./", "//", "../"]))
def test_no_path_leads_to_what_is_outside(base: Path, names: list[str], prefix: str) -> None:
    path = prefix + "/".join(names)
    with opened(base / "root") as tree:
        found = tree.read(path)
        tree.look(path)
    if isinstance(found, SourceFile):
        assert found.content != SECRET
        assert (base / "root" / found.path).read_bytes() == found.content
    else:
        assert found.path == path


def test_every_descriptor_is_closed_whatever_was_met(base: Path) -> None:
    gc.collect()  # what other tests left is closed by it, sooner or later
    before = len(list(Path("/proc/self/fd").iterdir()))
    with opened(base / "root", "pkg") as tree:
        tree.read("b.py")
    with opened(base / "root") as tree:
        for path, _ in REFUSED:
            tree.read(path)
            tree.look(path)
        tree.read("pkg/nowhere/b.py")
    tree.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# --- Looking ---


def test_looking_tells_where_a_path_leads_and_nothing_of_its_size(tree: SourceTree) -> None:
    assert tree.look("sparse.py") is None
    assert tree.look("pkg") is None
    assert tree.look("nowhere.md") == Missing("nowhere.md")
    assert tree.look("link.py") == Refused("link.py", "symbolic link")
    assert tree.look("fifo.py") == Refused("fifo.py", "not a regular file")
    assert tree.look("../secret.py") == Refused("../secret.py", "leaves the project")


# --- Project directories ---


def test_a_root_may_itself_be_a_link_and_is_known_by_both_names(base: Path, tmp_path: Path) -> None:
    link = tmp_path / "current"
    link.symlink_to(base / "root")
    for project_dir in (None, str(link), str(base / "root"), str(link / "pkg")):
        with opened(link, project_dir) as tree:
            name = "b.py" if project_dir and project_dir.endswith("pkg") else "a.py"
            assert isinstance(tree.read(name), SourceFile)


@pytest.mark.parametrize("spelling", ["pkg", "./pkg/", "{root}/pkg", "{root}//pkg/."])
def test_a_project_directory_is_relative_to_a_root_or_absolute_inside_one(base: Path, spelling: str) -> None:
    with opened(base / "root", spelling.format(root=base / "root")) as tree:
        found = tree.read("b.py")
    assert isinstance(found, SourceFile)
    assert found.path == "b.py"


@pytest.mark.parametrize(
    ("project_dir", "reason"),
    [
        ("/", "leaves the project"),
        ("/etc", "leaves the project"),
        ("..", "leaves the project"),
        ("pkg/../..", "leaves the project"),
        ("out", "symbolic link"),
        ("in", "symbolic link"),
        ("pk\0g", "control character"),
    ],
)
def test_a_project_directory_elsewhere_is_refused(
    base: Path, project_dir: str, reason: RefusalReason
) -> None:
    roots = SourceRoots({"p": [base / "root"]})
    assert roots.open("p", project_dir) == Refused(project_dir, reason)


def test_a_folder_beside_the_root_with_a_longer_name_is_not_inside_it(base: Path) -> None:
    (base / "root2").mkdir(exist_ok=True)
    roots = SourceRoots({"p": [base / "root"]})
    outside = str(base / "root2")
    assert roots.open("p", outside) == Refused(outside, "leaves the project")
    assert roots.open("p", str(base / "root" / ".." / "root2")) == Refused(
        str(base / "root" / ".." / "root2"), "leaves the project"
    )


def test_the_first_root_below_which_the_directory_exists_is_taken(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / f"only-{name}").mkdir(parents=True)
        (tmp_path / name / "a.py").write_bytes(name.encode())
        (tmp_path / name / f"only-{name}" / "a.py").write_bytes(name.encode())
    roots = SourceRoots({"p": [tmp_path / "one", tmp_path / "two"]})
    contents: list[bytes] = []
    for project_dir in (None, ".", "only-two", str(tmp_path / "two")):
        tree = roots.open("p", project_dir)
        assert isinstance(tree, SourceTree)
        with tree:
            found = tree.read("a.py")
        assert isinstance(found, SourceFile)
        contents.append(found.content)
    assert contents == [b"one", b"one", b"two", b"two"]
    assert roots.open("p", "only-three") == Missing("only-three")


def test_another_project_s_roots_are_not_the_project_s(base: Path, tmp_path: Path) -> None:
    roots = SourceRoots({"p": [tmp_path], "q": [base / "root"], "none": []})
    assert roots.open("p", str(base / "root")) == Refused(str(base / "root"), "leaves the project")
    assert [roots.is_configured(name) for name in ("p", "q", "none", "unknown")] == [True, True, False, False]


def test_a_root_that_is_not_there_is_an_outage_and_no_absence(tmp_path: Path) -> None:
    roots = SourceRoots({"p": [tmp_path / "unmounted"]})
    with pytest.raises(Unavailable) as raised:
        roots.open("p", None)
    assert str(tmp_path) not in str(raised.value)
