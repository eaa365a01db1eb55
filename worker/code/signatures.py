"""A definition's head on one line: how it is called, without its body."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice
from typing import Final

from worker.code.segments import Segments, shorten

MAX_ANNOTATION_CHARS: Final = 80
MAX_DEFAULT_CHARS: Final = 32
MAX_PARAMETERS: Final = 24
MAX_BASES: Final = 12
MAX_WRITTEN_STEPS: Final = 16


def function_signature(
    node: ast.FunctionDef | ast.AsyncFunctionDef, decorators: tuple[str, ...], segments: Segments
) -> str:
    """`@decorator async def name(parameters) -> result`; decorators without what they are called with.

    Annotations and defaults are the source's, long ones cut; of many parameters the first are given.
    """
    parameters = list(islice(_parameters(node.args, segments), MAX_PARAMETERS + 1))
    if len(parameters) > MAX_PARAMETERS:
        parameters[MAX_PARAMETERS:] = ["…"]
    keyword = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    result = f" -> {_annotation(node.returns, segments)}" if node.returns else ""
    return f"{_prefix(decorators)}{keyword} {node.name}({', '.join(parameters)}){result}"


def class_signature(node: ast.ClassDef, decorators: tuple[str, ...], segments: Segments) -> str:
    """`@decorator class Name(bases, keyword=value)`."""
    arguments = [_annotation(base, segments) for base in node.bases[:MAX_BASES]]
    for keyword in node.keywords[:MAX_BASES]:
        value = _default(keyword.value, segments)
        arguments.append(f"{keyword.arg}={value}" if keyword.arg else f"**{value}")
    if len(node.bases) > MAX_BASES or len(node.keywords) > MAX_BASES:
        arguments.append("…")
    bases = f"({', '.join(arguments)})" if arguments else ""
    return f"{_prefix(decorators)}class {node.name}{bases}"


def written_name(node: ast.expr) -> str:
    """The dotted name of an expression: `()` and `[]` for what stands in brackets, `?` for any other root."""
    pieces: list[str] = []
    for _ in range(MAX_WRITTEN_STEPS):
        match node:
            case ast.Name(id=name):
                return name + "".join(reversed(pieces))
            case ast.Attribute(value=value, attr=attr):
                pieces.append(f".{attr}")
                node = value
            case ast.Call(func=function):
                pieces.append("()")
                node = function
            case ast.Subscript(value=value):
                pieces.append("[]")
                node = value
            case ast.Await(value=value):
                node = value
            case _:
                break
    return "?" + "".join(reversed(pieces))


def _prefix(decorators: tuple[str, ...]) -> str:
    return "".join(f"@{name} " for name in decorators[:MAX_BASES])


def _parameters(args: ast.arguments, segments: Segments) -> Iterator[str]:
    positional = [*args.posonlyargs, *args.args]
    without_default = len(positional) - len(args.defaults)
    for index, arg in enumerate(positional):
        default = args.defaults[index - without_default] if index >= without_default else None
        yield _parameter(arg, default, segments)
        if index + 1 == len(args.posonlyargs):
            yield "/"
    if args.vararg:
        yield "*" + _parameter(args.vararg, None, segments)
    elif args.kwonlyargs:
        yield "*"
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield _parameter(arg, default, segments)
    if args.kwarg:
        yield "**" + _parameter(args.kwarg, None, segments)


def _parameter(arg: ast.arg, default: ast.expr | None, segments: Segments) -> str:
    if arg.annotation is None:
        return arg.arg if default is None else f"{arg.arg}={_default(default, segments)}"
    text = f"{arg.arg}: {_annotation(arg.annotation, segments)}"
    return text if default is None else f"{text} = {_default(default, segments)}"


def _annotation(node: ast.expr, segments: Segments) -> str:
    return shorten(segments.of(node), max_chars=MAX_ANNOTATION_CHARS)


def _default(node: ast.expr, segments: Segments) -> str:
    return shorten(segments.of(node), max_chars=MAX_DEFAULT_CHARS)
