"""Every error that Woodlot raises, by whose fault it is.

Bad input from the caller is a ``ValueError`` or ``TypeError`` with scikit-learn's own words where it has them;
the classes below are for what only a federation can get wrong.
"""

from __future__ import annotations


class WoodlotError(Exception):
    """Base class: catch it to catch everything that is Woodlot's own."""


class DataError(WoodlotError, ValueError):
    """A table, column or target that cannot be used; the message names it and says what to do."""


class MissingExtraError(WoodlotError, ModuleNotFoundError):
    """A library is not installed that not everybody needs; the message names the extra that brings it."""


class DeviceError(WoodlotError):
    """A graphics card is absent, too small, or has failed; the message says what to set instead."""


class LocalProtocolError(WoodlotError):
    """This side asked for something that the protocol does not allow now: a bug or a misuse of the caller's."""


class RemoteProtocolError(WoodlotError):
    """The peer sent something malformed, too large or out of turn. Nothing has been changed."""


class CiphertextError(RemoteProtocolError):
    """A number that is no element of the group, of another modulus, or that these keys do not open."""


class EpochError(CiphertextError):
    """Keys, ciphertexts or requests of an epoch that has ended, or has not begun."""


class PolicyError(WoodlotError):
    """A party's policy forbids what was asked of it."""


class ApprovalPendingError(WoodlotError):
    """The owners of some parties' data have yet to approve a job. It goes on when they have.

    Attributes
    ----------
    parties : tuple of str
        Whose owner has not decided, where it is known.

    """

    def __init__(self, message: str, parties: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.parties = parties


class ModelFileError(WoodlotError):
    """A saved model is damaged, of an unknown version, or does not belong to the others."""


class ReceiptError(WoodlotError):
    """A receipt is not what was signed, or not of whom it should be."""


class IdentityError(WoodlotError):
    """A key or certificate is missing, unsafe, expired, revoked, or not of the role that is needed."""


class ConfigError(WoodlotError, ValueError):
    """A configuration file that cannot be used; the message names the file, the setting and the remedy."""


class JournalError(WoodlotError):
    """The record of a run cannot be written, or is not what was written."""


class JobFailed(WoodlotError):  # noqa: N818 - what has happened, not what it is
    """A job ended without a result; the message says why."""


class PartyAwayError(WoodlotError):
    """A party did not come back within the time that the run waits for it. The run can be resumed.

    Attributes
    ----------
    parties : tuple of str
        Who is away, where it is known.

    """

    def __init__(self, message: str, parties: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.parties = parties
