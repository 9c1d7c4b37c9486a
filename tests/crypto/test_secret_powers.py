"""Keys are raised to in one place, whose time does not depend on them."""

from __future__ import annotations

from typing import Any

import gmpy2
import pytest
from small_keys import PRIMES, ROOT, stream

from woodlot.crypto import packed, powers
from woodlot.crypto.dtpkc import WeakKey, refresh
from woodlot.crypto.master import MasterKey
from woodlot.exceptions import LocalProtocolError
from woodlot_lab.comparison import Comparer, decide


def test_every_power_by_a_key_is_a_secret_power(monkeypatch: pytest.MonkeyPatch) -> None:
    plain: set[int] = set()
    secret: set[int] = set()

    def noted(name: str, seen: set[int]) -> None:
        true = getattr(gmpy2, name)

        def power(base: Any, exponent: Any, modulus: Any) -> Any:
            seen.add(int(exponent))
            return true(base, exponent, modulus)

        monkeypatch.setattr(gmpy2, name, power)

    for name in ("powmod", "powmod_base_list"):
        noted(name, plain)
    noted("powmod_sec", secret)
    table = powers.FixedBase.power

    def by_table(self: powers.FixedBase, exponent: int) -> Any:
        plain.add(int(exponent))
        return table(self, exponent)

    monkeypatch.setattr(powers.FixedBase, "power", by_table)

    key = MasterKey(*PRIMES[0], ROOT, setting="test")
    group = key.group
    coordinator, helper = key.split(stream("split"))
    weak = WeakKey.draw(group, stream("weak"))
    number = weak.public.encrypt(5, stream("r"))
    assert weak.decrypt([number]) == [key.decrypt(number)] == helper.open([number.c1], coordinator.power([number.c1]))
    weak.decrypt([weak.reencrypt(weak.partial([number])[0])], threads=2)
    shift = group.draw(stream("shift"))
    refresh(number, shift)
    blinded = packed.blind(group, [number.c1], [number.c1], [number.c1], [[0]], stream("factors"))
    comparer = Comparer(coordinator, stream("holt"))
    asked = comparer.ask(comparer.prepare_values([number])[0], comparer.prepare_splits([number])[0])
    decide(helper, [asked.c1], [asked.half])

    secrets = {
        int(weak._secret), int(key._sigma), int(coordinator.exponent), int(helper.exponent), shift,
        *blinded.factors,
    }  # fmt: skip
    assert secrets <= secret
    assert not secrets & plain
    assert len(secrets) == 6


def test_a_secret_exponent_is_positive() -> None:
    assert powers.secret_power(3, 5, 101) == pow(3, 5, 101)
    for exponent in (0, -1):
        with pytest.raises(LocalProtocolError, match="positive"):
            powers.secret_power(3, exponent, 101)
