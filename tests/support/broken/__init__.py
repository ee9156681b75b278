"""Packages with one fault each."""

from support.broken import estimators, imports, others
from support.broken.imports import PLAIN as PLAIN
from support.broken.metadata import METADATA as METADATA
from support.broken.metadata import OTHERS as OTHERS
from support.broken.rows import Row as Row

ROWS = [*imports.ROWS, *estimators.ROWS, *others.ROWS, *imports.HARMLESS]
