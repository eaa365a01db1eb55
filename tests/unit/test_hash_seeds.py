"""What the tests of determinism stand on: that their processes differ, and that their failures are seen."""

from __future__ import annotations

import pytest

from tests.support.hash_seeds import outputs


@pytest.mark.timeout(180)
def test_what_depends_on_the_seed_comes_out_differently() -> None:
    assert len(outputs(["-c", "print(hash('a'))"])) == 2
    assert outputs(["-c", "import sys; print(sys.argv[1:], __name__)", "a", "b"]) == {
        b"['a', 'b'] __main__\n"
    }


@pytest.mark.timeout(180)
def test_a_program_that_fails_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        outputs(["-c", "1 / 0"])
