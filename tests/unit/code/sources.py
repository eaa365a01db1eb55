"""Python source made for tests: functions full of branches, and modules full of definitions."""

from __future__ import annotations

from hypothesis import strategies as st

CONDITIONS = ("a > 0", "not b", "a and b", "x in (1, 2)", "'\"' == a", "len(b) > 3", "a == '\\\\'", "é")
ENDS = ("pass", "return 1", "raise ValueError(a)", "a = [x for x in b if x]", "b = 1 if a else 2", "assert a")


@st.composite
def bodies(draw: st.DrawFn, *, depth: int = 0) -> list[str]:
    """The lines of a function's body, with every kind of branch in it."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["end", "if", "for", "while", "try", "match", "with"]))
        condition = draw(st.sampled_from(CONDITIONS))

        def inner() -> list[str]:
            deeper = draw(bodies(depth=depth + 1)) if depth < 2 else [draw(st.sampled_from(ENDS))]
            return [f"    {line}" for line in deeper]

        if kind == "if":
            lines += [f"if {condition}:", *inner()]
            for _ in range(draw(st.integers(0, 2))):
                lines += [f"elif {condition}:", *inner()]
            if draw(st.booleans()):
                lines += ["else:", *inner()]
        elif kind in {"for", "while"}:
            lines += ["for x in b:" if kind == "for" else f"while {condition}:", *inner()]
            if draw(st.booleans()):
                lines += ["else:", *inner()]
        elif kind == "try":
            lines += ["try:", *inner(), "except OSError as e:", *inner(), "except (A, B):", *inner()]
            lines += [*draw(st.sampled_from([[], ["else:", "    pass"]])), "finally:", *inner()]
        elif kind == "match":
            lines += ["match a:", *(f"    {line}" for line in ["case [1, *_] if b:", *inner()])]
            lines += [f"    {line}" for line in ["case _:", *inner()]]
        elif kind == "with":
            lines += ["with a:", *inner()]
        else:
            lines.append(draw(st.sampled_from(ENDS)))
    return lines


@st.composite
def functions(draw: st.DrawFn) -> str:
    """One function of the module."""
    body = draw(bodies())
    return "\n".join(["def f(a, b=1):", *(f"    {line}" for line in body)]) + "\n"


SIGNATURES = (
    "", "self", "a", "a: int, b: str = 'x'", "a, /, b, *, c=1", "*args: int, **kw", "a=lambda: 1",
    "a: dict[str, list[tuple[int, ...]]] = {}, *, key=f'{1}'", 'self, *, a: "B" = ...',
)  # fmt: skip
DECORATORS = ("@property", "@staticmethod", "@d(1, key=[2])", "@a.b.c", "@d(f'{x}')")
NAMES = ("f", "g", "run", "_hidden", "value", "é")


@st.composite
def modules(draw: st.DrawFn, *, depth: int = 0) -> list[str]:
    """The lines of a module, or of a class in it."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["def", "async def", "class", "field", "if", "doc"]))
        name = draw(st.sampled_from(NAMES))
        if kind in {"def", "async def"}:
            lines += draw(st.lists(st.sampled_from(DECORATORS), max_size=2))
            lines.append(f"{kind} {name}({draw(st.sampled_from(SIGNATURES))}) -> 'X':")
            lines += ["    '''Doc \\\\ \"of\" it.\n\n    More.'''"] if draw(st.booleans()) else []
            lines += ["    def inner(z): return z", f"    return {draw(st.sampled_from(CONDITIONS))}"]
        elif kind == "class":
            base = draw(st.sampled_from(["", "(B)", "(B[int], metaclass=M)", "(*bases, **kw)"]))
            inner = draw(modules(depth=depth + 1)) if depth < 2 else ["..."]
            lines += [f"class {name.title()}{base}:", *(f"    {line}" for line in inner)]
        elif kind == "if":
            lines += ["if x:", "    def f(a): ...", "elif y:", "    z: int = 3", "else:", "    pass"]
        elif kind == "field":
            lines.append(draw(st.sampled_from(["A: int", "B: 'str' = 1", "C = D = 2", "x.y = 1", "_E = 1"])))
        else:
            lines.append('"""Doc."""')
    return lines


def text_of(lines: list[str]) -> str:
    """The source that has these lines."""
    return "\n".join(lines) + "\n"
