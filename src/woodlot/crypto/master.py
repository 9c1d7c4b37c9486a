"""The key centre's side of DT-PKC: a modulus whose factors it knows, and its strong key, to be split."""

from __future__ import annotations

from woodlot.crypto._libraries import gmp
from woodlot.crypto.dtpkc import DEFAULT_BITS, Ciphertext, Exponents, Group, Setting, StrongShare, check_bits
from woodlot.crypto.powers import secret_power
from woodlot.crypto.primes import is_safe_prime, safe_prime
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import ConfigError


class MasterKey:
    """What the key centre knows of one epoch: the factors of the modulus.

    Parameters
    ----------
    p, q : int
        Safe primes of equal length.
    generator_root : int
        The a of g = a^(2N).
    epoch, setting, exponents
        As for `Group`.

    Raises
    ------
    ConfigError
        If these are no primes to make keys of, or too short for the setting.

    """

    def __init__(
        self,
        p: int,
        q: int,
        generator_root: int,
        *,
        epoch: int = 1,
        setting: Setting = "standard",
        exponents: Exponents = "full",
    ) -> None:
        lib = gmp()
        p, q = lib.mpz(p), lib.mpz(q)
        alike = p.bit_length() == q.bit_length() or setting == "test"
        if p == q or not (alike and is_safe_prime(int(p)) and is_safe_prime(int(q))):
            raise ConfigError("the modulus needs two different safe primes of equal length")
        n, order = p * q, (p - 1) * (q - 1) // 2
        if lib.gcd(order, n) != 1:
            raise ConfigError("these primes do not go together: one divides the other less one; draw others")
        if setting != "test":
            check_bits(n.bit_length(), setting)
        g = lib.powmod(generator_root, 2 * n, n * n)
        if lib.gcd(generator_root, n) != 1 or lib.gcd(g - 1, n) != 1:
            raise ConfigError("the generator would not generate the group; draw another")
        self.group = Group(int(n), int(g), epoch=epoch, setting=setting, exponents=exponents)
        self._range = order * n  # lambda N
        self._sigma = order * lib.invert(order, n) % self._range

    def __repr__(self) -> str:
        return f"MasterKey(epoch={self.group.epoch})"

    @classmethod
    def generate(
        cls,
        bits: int = DEFAULT_BITS,
        *,
        stream: SecretStream | None = None,
        epoch: int = 1,
        setting: Setting = "standard",
        exponents: Exponents = "full",
    ) -> MasterKey:
        """Draw a modulus of exactly this length; at 3072 bits it takes about half a minute.

        Raises
        ------
        ConfigError
            If `bits` is odd or too short for the setting.

        """
        check_bits(bits, setting)
        stream = stream or SecretStream.fresh()
        while True:
            p, q = safe_prime(bits // 2, stream), safe_prime(bits // 2, stream)
            if p != q:
                break
        root = 2 + stream.below((p * q) ** 2 - 2)
        return cls(p, q, root, epoch=epoch, setting=setting, exponents=exponents)

    def split(self, stream: SecretStream) -> tuple[StrongShare, StrongShare]:
        """Shares of the strong key for the coordinator and for the helper."""
        first = stream.below(int(self._range))
        return StrongShare(self.group, first), StrongShare(self.group, (self._sigma - first) % self._range)

    def decrypt(self, ciphertext: Ciphertext) -> int:
        """The number, whatever keys are on it."""
        self.group.check(ciphertext)
        return self.group.number(self.group.message_of(secret_power(ciphertext.c1, self._sigma, self.group.N2)))
