"""What a file is written in, told by its name alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PYTHON_SUFFIXES: Final = (".py", ".pyi", ".pyw")

_BY_SUFFIX: Final[Mapping[str, str]] = {
    **dict.fromkeys(("py", "pyi", "pyw"), "python"),
    **dict.fromkeys(("ts", "mts", "cts"), "typescript"),
    "tsx": "tsx",
    **dict.fromkeys(("js", "mjs", "cjs"), "javascript"),
    "jsx": "jsx",
    "go": "go",
    "java": "java",
    "rs": "rust",
    **dict.fromkeys(("c", "h"), "c"),
    **dict.fromkeys(("cc", "cpp", "cxx", "hh", "hpp", "hxx"), "cpp"),
    "cs": "csharp",
    "rb": "ruby",
    "php": "php",
    "swift": "swift",
    **dict.fromkeys(("kt", "kts"), "kotlin"),
    "scala": "scala",
    "lua": "lua",
    "pl": "perl",
    "r": "r",
    "jl": "julia",
    **dict.fromkeys(("ex", "exs"), "elixir"),
    "erl": "erlang",
    "hs": "haskell",
    "clj": "clojure",
    **dict.fromkeys(("sh", "bash", "zsh"), "bash"),
    "ps1": "powershell",
    "sql": "sql",
    **dict.fromkeys(("md", "markdown", "mdx"), "markdown"),
    "rst": "rst",
    "txt": "text",
    "sdoc": "text",
    "feature": "gherkin",
    **dict.fromkeys(("yml", "yaml"), "yaml"),
    "toml": "toml",
    **dict.fromkeys(("ini", "cfg"), "ini"),
    **dict.fromkeys(("json", "jsonc", "json5", "ipynb"), "json"),
    "xml": "xml",
    **dict.fromkeys(("html", "htm"), "html"),
    "css": "css",
    "scss": "scss",
    "vue": "vue",
    "svelte": "svelte",
    "proto": "protobuf",
    **dict.fromkeys(("graphql", "gql"), "graphql"),
    "tf": "hcl",
    "csv": "csv",
    "tsv": "tsv",
    "svg": "xml",
}
_BY_NAME: Final[Mapping[str, str]] = {
    "Makefile": "makefile",
    "Dockerfile": "dockerfile",
    "Jenkinsfile": "groovy",
    "Rakefile": "ruby",
    "Gemfile": "ruby",
}
_SOURCE: Final = frozenset(
    {"python", "typescript", "tsx", "javascript", "jsx", "go", "java", "rust", "c", "cpp", "csharp", "ruby"}
    | {"php", "swift", "kotlin", "scala", "lua", "perl", "r", "julia", "elixir", "erlang", "haskell"}
    | {"clojure", "bash", "powershell", "sql", "vue", "svelte", "protobuf", "graphql"}
)
_DATA: Final = frozenset({"json", "xml", "csv", "tsv", "text", "html", "yaml"})


def language_of(path: str) -> str:
    """The language as a Markdown fence names it; empty where the name does not tell."""
    name = path.rsplit("/", 1)[-1]
    if "." not in name:
        return _BY_NAME.get(name, "")
    return _BY_SUFFIX.get(name.rsplit(".", 1)[-1].lower(), "")


def is_source(language: str) -> bool:
    """Whether it is a language that programs are written in."""
    return language in _SOURCE


def is_data(language: str) -> bool:
    """Whether files of it are as often written by programs as by people; so is what has no language."""
    return not language or language in _DATA
