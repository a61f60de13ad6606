"""PagePool: which pages of the KV cache are free. Numbers only; the memory belongs to kv/pool.py."""

PAGE = 64  # tokens a page holds; also a block of keys in the definition of attention


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` positions."""
    return -(-tokens // PAGE)


class PagePool:
    """`num_pages` pages, each free or owned by exactly one request. Asking for more than `available` is our
    bug: the scheduler looks first, since it is the one that can preempt."""

    def __init__(self, num_pages: int) -> None:
        assert num_pages > 0, num_pages
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))  # a stack: the page freed last is used first
        self._taken = bytearray(num_pages)

    @property
    def available(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        assert 0 <= count <= len(self._free), (count, len(self._free))
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._taken[page] = 1
        return pages

    def free(self, pages: list[int]) -> None:
        for page in reversed(pages):
            assert self._taken[page], f"page {page} freed twice"
            self._taken[page] = 0
            self._free.append(page)

    def check(self, owned: list[int] | None = None) -> None:
        """Free and taken pages are a partition; with `owned`, exactly those pages are taken, each once."""
        assert len(set(self._free)) == len(self._free), "a page is free twice"
        assert all(not self._taken[page] for page in self._free), "a free page is taken"
        assert len(self._free) + sum(self._taken) == self.num_pages, "a page is neither free nor taken"
        if owned is not None:
            assert len(set(owned)) == len(owned), "a page has two owners"
            assert all(self._taken[page] for page in owned), "an owned page is free"
            assert len(owned) == sum(self._taken), "a page is taken and has no owner"
