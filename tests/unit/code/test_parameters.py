from __future__ import annotations

from hypothesis import given, settings

from tests.unit.code.sources import modules, text_of
from worker.code.branches import NotSupported
from worker.code.parameters import ParameterReports, report_parameters

SOURCE = """
def plain(a, b: int, *rest, key, **more) -> int:
    return b

def closes_over(a: int) -> int:
    def inner() -> int: return a
    return inner()

def deletes(a: int, _b: int) -> None:
    del a

def whole(a: int) -> dict: return locals()

class A:
    def stub(self, a: int) -> int: ...
    def constant(self, a: int) -> bool: return True
    def method(self, a: int) -> int: return self.x
    @staticmethod
    def free(a: int) -> int: return max(1, 2)

class B(A):
    def method(self, a: int) -> int: return self.y
    def __exit__(self, kind: type) -> None: self.close()

@overload
def over(a: int) -> int: return f()

def adds(a: int) -> None:
    a += 1
"""


def reports(source: str) -> ParameterReports:
    found = report_parameters(source)
    assert isinstance(found, ParameterReports)
    return found


def test_dead_and_untyped_parameters_are_named_and_what_may_have_a_reason_is_not_certain() -> None:
    found = reports(SOURCE)
    assert [(r.qualname, r.untyped, r.dead, r.is_certain) for r in found.reports] == [
        ("plain", ("a", "rest", "key", "more"), ("a", "rest", "key", "more"), True),
        ("A.method", (), ("a",), True),
        ("A.free", (), ("a",), True),
        ("B.method", (), ("a",), False),
        ("B.__exit__", (), ("kind",), False),
    ]
    assert found.functions == 13


@settings(max_examples=25)
@given(modules())
def test_a_parameter_that_is_read_is_never_dead(lines: list[str]) -> None:
    before = text_of(lines)
    names = ("a", "b", "c", "args", "kw", "z")
    used = "".join(f"    {name}\n" for name in names)
    after = f"{before}def used(a, b, *args, c, z, **kw) -> int:\n{used}    return 1\n"
    assert [r.dead for r in reports(after).reports if r.qualname == "used"] == [()]
    assert reports(after).functions == reports(before).functions + 1


def test_what_cannot_be_told_is_said() -> None:
    assert report_parameters("def f(:", language="python") == NotSupported("syntax error at line 1")
    assert isinstance(report_parameters("func f() {}", language="go"), NotSupported)


def test_many_functions_are_cut_and_counted() -> None:
    found = reports("def f(a): return g()\n" * 2_100)
    assert (len(found.reports), found.more, found.functions) == (2_000, 100, 2_100)
