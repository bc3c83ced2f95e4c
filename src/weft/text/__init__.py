"""Text forms: a scanner that knows its column, and the notation of the Shardy dialect."""

from weft.text.scan import Scanner

__all__ = ["Scanner"]
