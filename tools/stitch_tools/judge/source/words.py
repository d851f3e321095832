"""Word lists that read like prose."""


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def prefixes(text: str) -> tuple[str, ...]:
    """The words of a text in their order, as `str.startswith` wants them."""
    return tuple(text.split())
