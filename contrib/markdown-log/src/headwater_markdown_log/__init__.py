"""An observer that keeps a readable page of a run."""

from headwater_markdown_log.observer import MarkdownLog

__all__ = ["MarkdownLog"]
