"""The text and traceback that are stored for a failed delivery."""

from __future__ import annotations

import traceback

from penstock.core.model import ERROR_TEXT_MAX, TRACEBACK_MAX
from penstock.core.redact import without_secrets
from penstock.errors import DeadLetter, Discard, WrongType


def describe(error: str | BaseException | None) -> str | None:
    if error is None:
        return None
    if isinstance(error, BaseException):
        name = type(error).__name__
        try:
            message = str(error)
        except Exception:
            message = ""  # The exception's __str__ raised.
        if message and isinstance(error, DeadLetter | Discard):
            text = message  # The name of the class would add nothing.
        else:
            text = f"{name}: {message}" if message else name
        text = without_secrets(text)
    elif isinstance(error, str):
        text = error
    else:
        raise WrongType(f"error: expected str or an exception, got {type(error).__name__}", field="error")
    return text[:ERROR_TEXT_MAX].encode("utf-8", "backslashreplace").decode()


def format_traceback(error: str | BaseException | None) -> str | None:
    """Format the traceback without secrets, cut to its end, which names the innermost call."""
    if not isinstance(error, BaseException) or error.__traceback__ is None:
        return None
    text = without_secrets("".join(traceback.format_exception(error)))
    return text[-TRACEBACK_MAX:].encode("utf-8", "backslashreplace").decode()
