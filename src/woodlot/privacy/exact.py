"""Probabilities as fractions and logarithms that are never too small, so that no claimed epsilon is."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

_DIGITS = 60
_UP = Context(prec=_DIGITS, rounding=ROUND_CEILING)
_DOWN = Context(prec=_DIGITS, rounding=ROUND_FLOOR)


def as_fraction(value: float | Fraction | str, name: str) -> Fraction:
    """The exact value of a parameter: a float stands for the binary number it is, text for what it says."""
    try:
        return Fraction(value)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        raise ValueError(f"{name} must be a finite number, not {value!r}") from None


def log_up(value: Fraction) -> Decimal:
    """The natural logarithm of a positive fraction, or a little more; never less."""
    quotient = _UP.divide(Decimal(value.numerator), Decimal(value.denominator))
    return _UP.next_plus(quotient.ln(_UP))  # ln rounds to the nearest, whatever the context says


def power_down(base: Fraction, exponent: int) -> Fraction:
    """A power of a fraction from 0 to 1, or a little less; never more."""
    square = _DOWN.divide(Decimal(base.numerator), Decimal(base.denominator))
    result = Decimal(1)
    while exponent:
        if exponent & 1:
            result = _DOWN.multiply(result, square)
        square = _DOWN.multiply(square, square)
        exponent >>= 1
    return Fraction(result)


def sum_up(terms: list[tuple[int, Decimal]]) -> Decimal:
    """The sum of some multiples, or a little more; never less."""
    total = Decimal(0)
    for count, value in terms:
        total = _UP.add(total, _UP.multiply(Decimal(count), value))
    return total


def float_up(value: Decimal | Fraction) -> float:
    """The smallest float that is not below the value."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= Fraction(value) else math.nextafter(nearest, math.inf)


def logistic_down(value: float, steps: int) -> int:
    """The largest number of steps, out of so many, whose share is at most e^value / (1 + e^value)."""
    odds = _DOWN.next_minus(Decimal(value).exp(_DOWN))
    return int(_DOWN.divide(_DOWN.multiply(odds, Decimal(steps)), _UP.add(odds, Decimal(1))))
