"""Kubernetes quantities, as numbers."""

from __future__ import annotations

import math
from decimal import Decimal

_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def number(quantity: str) -> Decimal:
    """What a quantity stands for. Raises ValueError when it is none."""
    text = quantity.strip()
    if text[-2:] in _BINARY:
        return Decimal(text[:-2]) * (1 << _BINARY[text[-2:]])
    if text[-1:] in _DECIMAL and not text[-1:].isdigit():
        return Decimal(text[:-1]).scaleb(_DECIMAL[text[-1:]])
    return Decimal(text)


def whole(quantity: str) -> int:
    """Rounded up: CPUs, or bytes."""
    return math.ceil(number(quantity))
