"""Values that look like credentials never reach a prompt, and nothing else changes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from detect_secrets.plugins.keyword import QUOTES_REQUIRED_DENYLIST_REGEX_TO_GROUP
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codes import PartName
from schemas.fragments import FragmentProvenance
from worker.fusion.masking import admit, mask_secrets
from worker.fusion.secrets import _keyword_matches as keyword_matches  # pyright: ignore[reportPrivateUsage]  # what it stands for is compared
from worker.fusion.secrets import find_secrets
from worker.ports import Fragment, LayerContribution, Rendering

ROOT = Path(__file__).parents[3]
HEX = "9f86d081884c7d659a2feaa0c55ad015"
JWT = (
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0"
    ".dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
)
KEY_LINE = "MIIEpAIBAAKCAQEA7bq5Hk1cQ2mF0s9d8f7g6h5j4k3l2z1x"
# Put together here, so that no scanner takes this file for a leak.
SECRETS = {
    "aws_key": [
        "AKIA" + "2E0A8F3B244C9986",
        "aws token AKIA" + "2E0A8F3B244C9987 '" + "wJalrXUtnFEMIQK7MDENGQbPxRfiCYzWuT71mKq9'",
    ],
    "azure_storage_key": ["AccountKey=" + "Ab1+" * 21 + "Zz=="],
    "github_token": ["ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"],
    "gitlab_token": ["glpat-" + "Zx81_kk20-fjQ77abXy9", "glptt-" + HEX + "c0ffee11"],
    "json_web_token": [JWT],
    "mailchimp_key": [HEX + "-us12"],
    "npm_token": ["//registry.npmjs.org/:_authToken=" + "npm_" + "a1B2c3D4" * 4],
    "openai_key": ["sk-" + "Zx81kk20fjQ77abXy9Aa" + "T3BlbkFJ" + "Qq3kP0vN5mWc8rYt2uLz"],
    "pypi_token": ["pypi-" + "AgEIcHlwaS5vcmc" + "Zx81kk20fj" * 8],
    "sendgrid_key": ["SG." + "Zx81kk20fjQ77abXy9Aa_b" + "." + "Qq3kP0vN5mWc8rYt2uLzQq3kP0vN5mWc8rYt2uLz-_a"],
    "slack_token": ["xoxb-" + "123456789012-" + "Zx81kk20fjQ77abX"],
    "square_secret": ["sq0csp-" + "Zx81kk20fjQ77abXy9Aa_bQq3kP0vN5mWc8rYt2uLz-"],
    "stripe_key": ["sk_live_" + "Zx81kk20fjQ77abXy9AaBb12"],
    "twilio_key": ["SK" + HEX],
    "url_password": ["postgres://shop:" + "Hk29vv1x" + "@db.internal/shop"],
    "secret": [
        "aws_secret_access_" + "key = '" + "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzWuT71mKq9'",
        'password = "' + "Zx81-kk20.fjQ77ab" + '"',
        "client_secret: '" + "q8Zr4Kw1Lp0Vt6Yb" + "'",
        "export API_KEY=" + "q8Zr4Kw1Lp0Vt6Yb",
        "  db_password: " + "q8Zr4Kw1Lp0Vt6Yb",
        'if "' + "q8Zr4Kw1Lp0Vt6Yb" + '" == password:',
    ],
    "private_key": [
        "-----BEGIN RSA PRIVATE KEY-----\n" + f"{KEY_LINE}\n" * 3 + "abcd==\n-----END RSA PRIVATE KEY-----",
        'KEY = "-----BEGIN PRIVATE KEY-----\\n'
        + KEY_LINE
        + "\\n"
        + KEY_LINE
        + '\\n-----END PRIVATE KEY-----"',
        "-----BEGIN OPENSSH PRIVATE KEY-----\n" + KEY_LINE + "\n" + KEY_LINE,
    ],
}
EVERY = [(kind, text) for kind, texts in SECRETS.items() for text in texts]
INNOCENT = [
    'password = "changeme"',
    'password = "correct horse battery staple"',
    "password = os.environ['PASSWORD_FOR_STAGING_2']",
    'token = "${DEPLOY_TOKEN_2024}"',
    'secret_key = "your-secret-key-here-123"',
    'api_key="test_api_key_12345"',
    "redis://user:password@localhost:6379/0",
    "https://example.org/a:b/c@d",
    f'sha256 = "{HEX * 2}"',
    f"uuid: 123e4567-e89b-12d3-a456-426614174000  # {HEX}",
    'if "BEGIN RSA PRIVATE KEY" in text:',
    'header = "-----BEGIN PRIVATE KEY-----"',
    "key = session_key_for_project_2(name)",
    "password_reset_url = 'accounts/password-reset/v2/confirm'",
    "twilio: ACxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "eyJ is how a web token begins",
    "the secret: 0123456789abcdef",
]


@pytest.mark.parametrize(("kind", "text"), EVERY, ids=[f"{kind}-{n}" for n, (kind, _) in enumerate(EVERY)])
def test_a_credential_is_masked_wherever_it_stands(kind: str, text: str) -> None:
    values = [text[secret.start : secret.end] for secret in find_secrets(text)]
    assert values
    for around in ("{}", "before\n{}\nafter", "é中🚀\n# note\n{}\n"):
        masked, count = mask_secrets(around.replace("{}", text))
        assert count == len(values)
        assert f"[masked:{kind}]" in masked
        assert not any(value in masked for value in values)


@pytest.mark.parametrize("text", INNOCENT)
def test_what_only_looks_like_one_stays(text: str) -> None:
    assert mask_secrets(text) == (text, 0)


def test_the_line_of_a_key_that_ends_it_is_masked_too() -> None:
    masked, _ = mask_secrets(SECRETS["private_key"][0])
    assert masked == ("-----BEGIN RSA PRIVATE KEY-----\n[masked:private_key]\n-----END RSA PRIVATE KEY-----")


def test_code_of_this_project_holds_no_false_alarm() -> None:
    found = [
        (path.name, text[secret.start : secret.end])
        for path in sorted((ROOT / "worker").rglob("*.py"))
        for text in [path.read_text()]
        for secret in find_secrets(text)
    ]
    assert found == []


@settings(max_examples=40)
@given(
    parts=st.lists(
        st.sampled_from([text for _, text in EVERY])
        | st.sampled_from(INNOCENT)
        | st.text("ab1/:@=\"'` \n-_.", max_size=12)
        | st.sampled_from(["```\n", "```python\n", "[[end task 0123456789abcdef]]\n", "\n", "\x0b", "中"]),
        max_size=8,
    )
)
def test_masking_twice_changes_nothing_and_fences_stay(parts: list[str]) -> None:
    text = "".join(parts)
    masked, count = mask_secrets(text)
    assert mask_secrets(masked) == (masked, 0)
    assert (masked == text) == (count == 0)
    assert masked.count("```") == text.count("```")
    assert masked.count("[[end task") == text.count("[[end task")


@pytest.mark.parametrize(
    "unit", ["eyJ", "//:_authToken=", "://a:", "password", "password='", "AKIA", "glpat-", "SG.", "-us1"]
)
def test_a_long_line_that_is_all_suspicion_takes_no_time_in_its_square(unit: str) -> None:
    def seconds(size: int) -> float:
        text = unit * (size // len(unit))
        started = time.process_time()
        find_secrets(text)
        return time.process_time() - started

    assert seconds(80_000) < 10 * max(seconds(20_000), 0.02)


PIECES = (
    *("password", "pwd", "Secret", "API_KEY", "db_pass", "contraseña", "token", "_a1", "x", "1"),
    *(
        "'",
        '"',
        "`",
        ";",
        ":",
        "=",
        "==",
        "!=",
        "!==",
        "=>",
        " ",
        "  ",
        "]",
        "\v",
        ",",
        "(",
        "-",
        "[0]",
        "\t",
    ),
    *(
        "q8Zr4Kw1Lp0Vt6Yb",
        "'q8Zr4Kw1Lp0Vt6Yb'",
        '"q8Zr4Kw1Lp0Vt6Yb"',
        "`q8Zr4Kw1Lp0Vt6Yb`",
        "a" * 49,
        "-" * 24,
    ),
)


@settings(max_examples=400)
@given(st.lists(st.sampled_from(PIECES), max_size=24), st.integers(0, 9), st.integers(0, 9))
def test_what_is_set_is_found_as_the_detectors_own_expressions_find_it(
    parts: list[str], before: int, after: int
) -> None:
    line = "password = 'q8Zr4Kw1Lp0Vt6Yb'"[before:] + "".join(parts)
    start, end = min(before, len(line)), max(0, len(line) - after)
    found = {(match.span(group), match.end()) for match, group in keyword_matches(line, start, end)}
    assert found == {
        (match.span(group), match.end())
        for expression, group in QUOTES_REQUIRED_DENYLIST_REGEX_TO_GROUP.items()
        for match in expression.finditer(line, start, end)
    }


@pytest.mark.parametrize(
    "unit", ["password", "password_", "pwd=", "password: ", "secret'", "pwd == ", "x-pwd-"]
)
def test_a_hostile_line_takes_less_than_ten_microseconds_a_character(unit: str) -> None:
    text = (unit * (1_000 // len(unit)) + "'q8Zr4Kw1Lp0Vt6Yb' ") * 40

    def seconds() -> float:
        started = time.process_time()
        find_secrets(text)
        return time.process_time() - started

    assert min(seconds() for _ in range(3)) < 10e-6 * len(text)


@pytest.mark.parametrize("unit", ["BEGIN ", "BEGIN PRIVATE KEY\n", "PuTTY-User-Key-File-2\n"])
def test_a_text_that_is_all_headers_of_keys_takes_no_time_in_its_square(unit: str) -> None:
    def seconds(size: int) -> float:
        text = "PRIVATE KEY\n" + unit * (size // len(unit))
        started = time.process_time()
        find_secrets(text)
        return time.process_time() - started

    assert seconds(80_000) < 10 * max(seconds(20_000), 0.02)


def test_of_several_keys_in_one_text_each_is_masked_and_nothing_between_them() -> None:
    key = SECRETS["private_key"][0]
    other = "Zx81kk20fjQ77abXy9AaBb12Zx81kk20fjQ77abXy9AaBb12"
    masked, count = mask_secrets(f"{key}\n{other}\n{key}\n-----BEGIN PRIVATE KEY-----\n{KEY_LINE}")
    assert count == 3
    assert other in masked
    assert KEY_LINE not in masked


def test_a_web_token_longer_than_a_piece_is_masked_to_its_end() -> None:
    header, _, signature = JWT.split(".")
    token = f"{header}.{'eyJhIjoi' + 'Zm9v' * 600}.{signature}"
    for before in range(0, 1_500, 111):
        assert mask_secrets("1," * before + token + " end") == (
            "1," * before + "[masked:json_web_token] end",
            1,
        )


def test_a_credential_in_a_line_longer_than_a_piece_is_found_at_any_place() -> None:
    token = SECRETS["github_token"][0]
    for at in range(0, 3_000, 97):
        masked, count = mask_secrets("x = " + "1, " * (at // 3) + token + ", 2" * 1_000)
        assert (count, token in masked) == (1, False)


# --- Contributions -----------------------------------------------------------------------------------


def contribution(*texts: str, layer: PartName = "memory", **more: object) -> LayerContribution:
    fragments = tuple(
        Fragment(
            layer=layer,
            node=f"n{number}",
            renderings=(Rendering(depth=9, text=text), Rendering(depth=0, text=text[:60])),
            provenance=(FragmentProvenance(resource_uri=f"n{number}"),),
            position=number,
            **more,  # pyright: ignore[reportArgumentType]  # fields of a fragment
        )
        for number, text in enumerate(texts)
    )
    return LayerContribution(layer=layer, status="ok", fragments=fragments)


def test_every_text_of_a_fragment_comes_through_the_door() -> None:
    token = SECRETS["github_token"][0]
    given_ = contribution(f"use {token} now", "nothing here", group=f"## {token}", metadata={"name": token})
    admitted = admit({"memory": given_}, is_masking=True)
    first, second = admitted.contributions["memory"].fragments
    assert token not in repr(admitted)
    assert first.renderings[0].text == "use [masked:github_token] now"
    assert first.renderings[1].text == "use [masked:github_token] now"
    assert (first.group, first.metadata) == ("## [masked:github_token]", {"name": "[masked:github_token]"})
    assert admitted.masked == {first.key: 3, second.key: 2}


def test_clean_contributions_are_the_very_same() -> None:
    given_: dict[PartName, LayerContribution] = {
        "memory": contribution("one", "two" * 40),
        "plan": LayerContribution(layer="plan", status="empty"),
    }
    assert all(admit(given_, is_masking=True).contributions[layer] is given_[layer] for layer in given_)


def test_a_project_may_have_it_otherwise() -> None:
    token = SECRETS["github_token"][0]
    admitted = admit({"memory": contribution(token)}, is_masking=False)
    assert admitted.contributions["memory"].fragments[0].renderings[0].text == token
    assert (admitted.masked, admitted.is_masking) == ({}, False)


@pytest.mark.parametrize(("said", "read"), [(float("nan"), 0.0), (float("inf"), 1.0), (float("-inf"), 0.0)])
def test_a_relevance_that_is_no_number_cannot_be_written_down_and_is_read_as_the_scorer_does(
    said: float, read: float
) -> None:
    admitted = admit({"memory": contribution("text", relevance=said)}, is_masking=True)
    assert admitted.contributions["memory"].fragments[0].relevance == read
