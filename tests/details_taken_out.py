"""For each detail: the tests that docs/details.md names pass, and with the detail taken out one of them fails.
`make test-details` runs it; `make test` does so for the quickest ones."""

import pytest
from mutations import ABLATIONS, ROOT, assert_taken_out, named_tests, run_tests


def test_the_named_tests_pass():
    tests = {test for tag in {one.tag for one in ABLATIONS.values()} for test in named_tests()[tag]}
    ends = run_tests(sorted(tests), {})
    assert len({end.split("[")[0] for end in ends}) == len(tests)
    assert not [(test, end) for test, end in ends.items() if end]


@pytest.mark.parametrize("name", [one.name for one in ABLATIONS.values() if one.diff.is_file()])
def test_a_test_fails_without_the_detail(name):
    assert_taken_out(name)


def test_every_detail_is_taken_out():
    taken = {one.tag for one in ABLATIONS.values() if one.diff.is_file()}
    assert taken == named_tests().keys()
    numbered = [tag for tag in taken if tag.split("-")[0] in ("core", "atari", "cont", "lstm", "multi")]
    assert f"{len(numbered)} of 37 details" in (ROOT / "docs" / "ablations.md").read_text()
