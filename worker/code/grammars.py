"""What the tolerant reader looks for in each language: a table of node types of the tree-sitter grammars."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import tree_sitter_go
import tree_sitter_java
import tree_sitter_javascript
import tree_sitter_python
import tree_sitter_rust
import tree_sitter_typescript
from tree_sitter import Language, Parser

from worker.code.facts import BranchKind, Leaving


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grammar:
    """One language. Types that a grammar does not have simply never occur."""

    language: str
    """As a Markdown fence names it."""
    load: Callable[[], object]
    functions: frozenset[str]
    classes: frozenset[str]
    """Whatever members can stand in: interfaces, enums and the like too."""
    holders: Mapping[str, str] = field(default_factory=dict[str, str])
    """What members stand in without being defined there, and the field that names it: `impl S { … }`."""
    wrappers: frozenset[str] = frozenset()
    """What a definition's own lines begin with: `export`, decorators, the `const` before a name."""
    calls: Mapping[str, str] = field(default_factory=dict[str, str])
    """Each kind of call, and the field that says what is called."""
    imports: frozenset[str] = frozenset()
    comments: frozenset[str] = frozenset({"comment"})
    decisions: frozenset[str] = frozenset()
    """Each adds one to the cyclomatic complexity."""
    bases: frozenset[str] = frozenset()
    """What names the bases of a class."""
    has_leading_docs: bool = True
    """Whether comments above a definition document it, and so are its own lines."""


BRANCHES: Final[Mapping[str, BranchKind]] = {
    **dict.fromkeys(("if_statement", "if_expression"), "if"),
    "elif_clause": "elif",
    "else_clause": "else",
    **dict.fromkeys(("for_statement", "for_in_statement", "enhanced_for_statement", "for_expression"), "for"),
    **dict.fromkeys(("while_statement", "while_expression", "do_statement", "loop_expression"), "while"),
    **dict.fromkeys(("except_clause", "catch_clause"), "except"),
    **dict.fromkeys(("case_clause", "switch_case", "switch_default", "match_arm"), "case"),
    **dict.fromkeys(("expression_case", "type_case", "communication_case", "default_case"), "case"),
    "switch_label": "case",
    **dict.fromkeys(("conditional_expression", "ternary_expression"), "ternary"),
    "if_clause": "comprehension if",
    "assert_statement": "assert",
}
"""Nodes of all grammars where control can go two ways. Some add no complexity: the way that is left over."""

LEAVING: Final[Mapping[str, Leaving]] = {
    **dict.fromkeys(("return_statement", "return_expression"), "return"),
    **dict.fromkeys(("raise_statement", "throw_statement"), "raise"),
    **dict.fromkeys(("continue_statement", "continue_expression"), "continue"),
    **dict.fromkeys(("break_statement", "break_expression"), "break"),
}

_C_LIKE_DECISIONS: Final = frozenset(
    {"if_statement", "for_statement", "for_in_statement", "while_statement", "do_statement", "catch_clause"}
    | {"switch_case", "ternary_expression", "&&", "||", "??"}
)


def _javascript(language: str, load: Callable[[], object]) -> Grammar:
    return Grammar(
        language=language,
        load=load,
        functions=frozenset(
            {"function_declaration", "generator_function_declaration", "function_signature"}
            | {"method_definition", "method_signature", "abstract_method_signature"}
            # Functions without a name of their own are named by what they are assigned to.
            | {"arrow_function", "function_expression", "generator_function"}
        ),
        classes=frozenset(
            {"class_declaration", "abstract_class_declaration", "interface_declaration", "class"}
            | {"enum_declaration", "type_alias_declaration", "internal_module"}
        ),
        wrappers=frozenset(
            {"export_statement", "lexical_declaration", "variable_declaration", "expression_statement"}
            | {"variable_declarator", "assignment_expression", "ambient_declaration"}
        ),
        calls={"call_expression": "function", "new_expression": "constructor"},
        imports=frozenset({"import_statement"}),
        decisions=_C_LIKE_DECISIONS,
        bases=frozenset({"class_heritage", "extends_type_clause"}),
    )


PYTHON: Final = Grammar(
    language="python",
    load=tree_sitter_python.language,
    functions=frozenset({"function_definition"}),
    classes=frozenset({"class_definition"}),
    wrappers=frozenset({"decorated_definition"}),
    calls={"call": "function"},
    imports=frozenset({"import_statement", "import_from_statement"}),
    decisions=frozenset(
        {"if_statement", "elif_clause", "for_statement", "while_statement", "except_clause", "case_clause"}
        | {"conditional_expression", "boolean_operator", "if_clause", "for_in_clause", "assert_statement"}
    ),
    bases=frozenset({"argument_list"}),
    has_leading_docs=False,
)

GRAMMARS: Final[tuple[Grammar, ...]] = (
    _javascript("javascript", tree_sitter_javascript.language),
    _javascript("jsx", tree_sitter_javascript.language),
    _javascript("typescript", tree_sitter_typescript.language_typescript),
    _javascript("tsx", tree_sitter_typescript.language_tsx),
    Grammar(
        language="go",
        load=tree_sitter_go.language,
        functions=frozenset({"function_declaration", "method_declaration"}),
        classes=frozenset({"type_spec", "type_alias"}),
        wrappers=frozenset({"type_declaration"}),
        calls={"call_expression": "function"},
        imports=frozenset({"import_spec"}),
        decisions=frozenset(
            {
                "if_statement",
                "for_statement",
                "expression_case",
                "type_case",
                "communication_case",
                "&&",
                "||",
            }
        ),
    ),
    Grammar(
        language="java",
        load=tree_sitter_java.language,
        functions=frozenset(
            {"method_declaration", "constructor_declaration", "compact_constructor_declaration"}
        ),
        classes=frozenset(
            {"class_declaration", "interface_declaration", "enum_declaration", "record_declaration"}
            | {"annotation_type_declaration"}
        ),
        calls={"method_invocation": "name", "object_creation_expression": "type"},
        imports=frozenset({"import_declaration"}),
        comments=frozenset({"line_comment", "block_comment"}),
        decisions=_C_LIKE_DECISIONS | {"enhanced_for_statement", "switch_label"},
        bases=frozenset({"superclass", "super_interfaces", "extends_interfaces"}),
    ),
    Grammar(
        language="rust",
        load=tree_sitter_rust.language,
        functions=frozenset({"function_item", "function_signature_item", "macro_definition"}),
        classes=frozenset({"struct_item", "enum_item", "union_item", "trait_item", "mod_item", "type_item"}),
        holders={"impl_item": "type"},
        calls={"call_expression": "function", "macro_invocation": "macro"},
        imports=frozenset({"use_declaration"}),
        comments=frozenset({"line_comment", "block_comment"}),
        decisions=frozenset(
            {
                "if_expression",
                "for_expression",
                "while_expression",
                "loop_expression",
                "match_arm",
                "&&",
                "||",
            }
            | {"try_expression"}
        ),
    ),
)
GRAMMAR_OF: Final[Mapping[str, Grammar]] = {grammar.language: grammar for grammar in GRAMMARS}
"""By the language's name. Python's is apart: it is for what Python's own parser refuses."""


@lru_cache(maxsize=16)
def language_of(grammar: Grammar) -> Language:
    """The grammar, loaded once a process."""
    return Language(grammar.load())


def parser_for(grammar: Grammar) -> Parser:
    """A parser of one's own: a parser serves one thread at a time."""
    return Parser(language_of(grammar))
