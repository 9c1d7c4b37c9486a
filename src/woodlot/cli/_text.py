"""Texts of others, such as names of models and reasons of parties, made fit for a terminal and for a log."""

from __future__ import annotations

import unicodedata


def spelled_out(text: str, *, keep: str = "") -> str:
    r"""A text without anything that a terminal acts on or a line ends with: such characters are spelled, as ``\x1b``.

    Parameters
    ----------
    text : str
        Whatever somebody has written.
    keep : str
        Characters that stay as they are.

    """
    if text.isprintable():
        return text
    return "".join(one if _is_harmless(one) or one in keep else _spelled(one) for one in text)


def _is_harmless(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"  # spaces of any width


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()
