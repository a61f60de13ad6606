"""PagePool against a set: whatever the order of calls, a page has one owner or none."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xinfer.kv.pages import PAGE, PagePool, pages_for


def test_pages_for() -> None:
    assert [pages_for(n) for n in (0, 1, PAGE, PAGE + 1)] == [0, 1, 1, 2]


@settings(deadline=None)
@given(st.integers(1, 12), st.lists(st.integers(-6, 6), max_size=60))
def test_against_a_set(num_pages: int, moves: list[int]) -> None:
    pool, owned = PagePool(num_pages), []
    for move in moves:
        if move >= 0 and move <= pool.available:
            owned.append(pool.allocate(move))
        elif move < 0 and owned:
            pool.free(owned.pop(move % len(owned)))
        pages = [page for pages in owned for page in pages]
        pool.check(pages)
        assert set(pages) <= set(range(num_pages)) and pool.available == num_pages - len(pages)


def test_our_bugs_are_caught() -> None:
    pool = PagePool(2)
    pages = pool.allocate(2)
    with pytest.raises(AssertionError):
        pool.allocate(1)
    pool.free(pages[:1])
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(pages[:1])
    with pytest.raises(AssertionError, match="no owner"):
        pool.check([])
    with pytest.raises(AssertionError, match="an owned page is free"):
        pool.check(pages)
