"""Distributions that are installed for a while, and for no longer than that."""

import sys
from contextlib import contextmanager


@contextmanager
def offered(folders):
    """Within it the packages of these folders are found first."""
    texts = [str(folder) for folder in folders]
    sys.path[:0] = texts
    try:
        yield
    finally:
        for text in texts:
            sys.path.remove(text)
