"""What is kept of a failure: its text and where it happened. The same for tasks and threads."""

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
            told = str(error)
        except Exception:
            told = ""  # Its own text cannot be had.
        if told and isinstance(error, DeadLetter | Discard):
            text = told  # The reason is all that its name would add.
        else:
            text = f"{name}: {told}" if told else name
        text = without_secrets(text)
    elif isinstance(error, str):
        text = error
    else:
        raise WrongType(f"error is a str or an exception, not {type(error).__name__}", field="error")
    return text[:ERROR_TEXT_MAX].encode("utf-8", "backslashreplace").decode()


def format_traceback(error: str | BaseException | None) -> str | None:
    """Where an exception was raised, without secrets and cut to its end, which names the innermost call."""
    if not isinstance(error, BaseException) or error.__traceback__ is None:
        return None
    text = without_secrets("".join(traceback.format_exception(error)))
    return text[-TRACEBACK_MAX:].encode("utf-8", "backslashreplace").decode()
