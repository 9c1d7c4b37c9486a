"""Start-up kits: one file for each organisation of a federation, and what both sides do with it.

::

    organisation                            operator
    join --as shop: keys, shop-request.pem  ->
                                            provision: compares a fingerprint, signs
                                        <-  kits/shop.kit: facts, trust, certificates; signed by the authority
    join shop.kit: compares a fingerprint,
    installs, writes settings and script

A kit has no private key and nothing that is secret. The organisation makes its keys itself. It compares the
fingerprint of the authority with the operator over another channel, once; all else in the kit is signed with that key.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509 import Certificate

from woodlot.data.decoding import from_json
from woodlot.exceptions import IdentityError
from woodlot.identity import certificates as files
from woodlot.identity.authority import Authority
from woodlot.identity.certificates import CertificateRequest, Subject
from woodlot.identity.identity import Identity, install, request, to_sign
from woodlot.service.federation_file import FederationConfig, OrganisationConfig
from woodlot.service.kit_settings import (
    MEMBER_FILES,
    coordinator_settings,
    job_settings,
    member_settings,
    party_settings,
    start_script,
)
from woodlot.service.settings import Address

KITS = "kits"
"""The folder beside federation.toml that kits are written to."""

RENEW_DAYS = 30
"""Certificates of organisations that run here are signed again when they end sooner than this."""

_PURPOSE = "kit"
_CONTRADICTS = "{} contradicts itself; ask the operator to provision again"
_CSR = b"-----END CERTIFICATE REQUEST-----"


class KitFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a kit says; all of it is signed.

    Attributes
    ----------
    federation, organisation : str
        Their names.
    coordinator : str
        Address.
    runs_coordinator, has_party : bool
        What the organisation runs.
    service : {"helper", "key service"}, unset by default
        What it runs under its name in place of a party.
    helpers, key_services : tuple of str, unset by default
        Organisations that run these, for the proposal of a policy.
    users : tuple of str
        The organisation's own.
    parties, all_users : tuple of str
        Everybody's, for examples and for the proposal of a policy.
    authority : str
        The authority's certificate, PEM.
    certificates : dict of str to str
        By ``woodlot://ROLE/NAME`` what `Authority.sign` gave; empty until the request has come.

    """

    format: Literal["woodlot kit 1"] = "woodlot kit 1"
    federation: str
    organisation: str
    coordinator: str
    runs_coordinator: bool
    has_party: bool
    service: Literal["helper", "key service"] | msgspec.UnsetType = msgspec.UNSET
    helpers: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    key_services: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    users: tuple[str, ...]
    parties: tuple[str, ...]
    all_users: tuple[str, ...]
    authority: str
    certificates: dict[str, str] = {}

    @property
    def members(self) -> tuple[Subject, ...]:
        """Role and name of each member of the organisation."""
        own = OrganisationConfig(
            coordinator=self.runs_coordinator,
            party=self.has_party,
            helper=self.service == "helper",
            key_service=self.service == "key service",
            users=self.users,
        )
        return own.members(self.organisation)

    @property
    def fingerprint(self) -> str:
        """The authority's, to be compared with the operator."""
        certificate = files.parse_authority(self.authority.encode(), "the authority's certificate in the kit")
        return files.fingerprint(files.public_key(certificate))


class SignedKit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file: the facts as they were signed, and the authority's signature."""

    kit: str
    signature: str


class Joined(NamedTuple):
    """What `join` has done.

    Attributes
    ----------
    folder : Path
        The organisation's.
    request : Path or None
        A request that is to go to the operator; None: all certificates are installed.
    fingerprint : str
        Of the request, to be compared by the operator; empty without one.
    written : tuple of Path
        New files that the organisation is to read and complete.

    """

    folder: Path
    request: Path | None
    fingerprint: str
    written: tuple[Path, ...]


# --- requests ---


def member_folder(folder: Path, member: Subject) -> Path:
    """Where a member of an organisation has its files."""
    return folder / "users" / member.name if member.role == "user" else folder / member.role


def make_requests(folder: Path, organisation: str, members: Sequence[Subject]) -> tuple[Path, str]:
    """Make the keys that are missing, and one file with the requests of all members.

    Returns
    -------
    path : Path
        The file for the operator.
    fingerprint : str
        Of all keys together; see `requests_fingerprint`.

    """
    parts = []
    for member in members:
        identity = member_folder(folder, member) / "identity"
        if not (identity / files.KEY).exists():
            request(identity, member.role, member.name)
        parts.append(files.read_file(identity / files.REQUEST, "it was made with the key: restore it from a backup"))
    path = folder / f"{organisation}-request.pem"
    files.write_file(path, b"".join(parts))
    return path, requests_fingerprint(read_requests(b"".join(parts), str(path)))


def read_requests(pem: bytes, what: str) -> list[CertificateRequest]:
    """Read all requests of a file; each is signed by its own key."""
    parts = [part + _CSR for part in pem.split(_CSR)[:-1]]
    if not parts:
        raise IdentityError(f"{what} holds no request; name the file that woodlot join has made")
    return [CertificateRequest.parse(part, what) for part in parts]


def requests_fingerprint(requests: Sequence[CertificateRequest]) -> str:
    """SHA-256 over role, name and key of all members: one comparison is enough for an organisation."""
    lines = sorted(f"{one.subject.uri} {one.fingerprint}\n" for one in requests)
    return hashlib.sha256("".join(["woodlot requests 1\n", *lines]).encode()).hexdigest()


def check_same(said: str, fingerprint: str, what: str) -> None:
    """Raise unless a fingerprint that somebody has read out is this one."""
    if "".join(said.split()).lower() != fingerprint:
        raise IdentityError(
            f"{what} has the fingerprint {grouped(fingerprint)}, which is not the one that was given; somebody may "
            "have put another in its place: ask for it again over another channel"
        )


def grouped(fingerprint: str) -> str:
    """Eight digits at a time, as one reads them out on the telephone."""
    return " ".join(fingerprint[at : at + 8] for at in range(0, len(fingerprint), 8))


# --- the operator ---


class Operator:
    """Provisions a federation.

    Parameters
    ----------
    config : FederationConfig
        Who takes part.
    root : Path
        The folder of federation.toml.
    days : int
        How long certificates are valid.

    """

    def __init__(self, config: FederationConfig, root: Path, *, days: int = 365) -> None:
        self.config = config
        self.root = root
        self._days = days
        if config.authority.exists():
            self.authority = Authority.open(config.authority)
        else:
            self.authority = Authority.create(config.authority, config.name, days=3650, list_days=config.list_days)
        if self.authority.federation != config.name:
            raise IdentityError(
                f"{config.authority} is the authority of the federation {self.authority.federation!r}, not of "
                f"{config.name!r}; name another folder with the setting authority"
            )

    def asked_for(self, requests: Sequence[CertificateRequest], what: str) -> str:
        """The organisation whose members these are, all of them and no others."""
        asked = {one.subject for one in requests}
        for name, one in self.config.organisations.items():
            if asked == set(one.members(name)) and len(requests) == len(asked):
                return name
        told = ", ".join(sorted(map(str, asked)))
        raise IdentityError(
            f"{what} asks for {told}; no organisation of the federation has exactly these members. Correct the "
            "federation's file, or have the organisation join with the right names"
        )

    def sign(self, organisation: str, requests: Sequence[CertificateRequest]) -> Path:
        """Sign an organisation's requests, whose fingerprint was compared, and write its kit."""
        if self.config.organisations[organisation].here:
            raise IdentityError(f"{organisation} runs here, so its keys are made here; no request is needed")
        if len({one.fingerprint for one in requests}) < len(requests):
            raise IdentityError(f"the request of {organisation} has one key for two members; each needs its own")
        for one in requests:
            self.authority.rivals(one)  # all or nothing: a second key for a name is refused before the first is signed
        signed = {one.subject.uri: self.authority.sign(one, days=self._days).decode() for one in requests}
        return self._write(organisation, signed)

    def write_kits(self) -> dict[str, tuple[Path, bool]]:
        """Write the kits of organisations elsewhere; by organisation the file, and whether it has certificates."""
        kits = {}
        for name, one in self.config.organisations.items():
            if not one.here:
                before = self._signed_before(name)
                kits[name] = (self._write(name, before), bool(before))
        return kits

    def join_here(self) -> dict[str, Joined]:
        """Make keys, certificates and settings of the organisations that run here."""
        done = {}
        for name, one in self.config.organisations.items():
            if one.here:
                folder = self.root / name
                make_requests(folder, name, one.members(name))
                kit = self._facts(name, dict(self._sign_here(folder, one.members(name))))
                (folder / f"{name}-request.pem").unlink()
                done[name] = settle(kit, folder, revocations=self.config.authority / files.REVOKED)
        return done

    def _sign_here(self, folder: Path, members: Sequence[Subject]) -> list[tuple[str, str]]:
        """Certificates for members without one, or whose one ends soon."""
        signed = []
        for member in members:
            identity = member_folder(folder, member) / "identity"
            if (identity / files.CERTIFICATE).exists():
                left = Identity.load(identity).expires - datetime.now(UTC)
                if left > timedelta(days=min(RENEW_DAYS, self._days / 2)):
                    continue
            pem = files.read_file(identity / files.REQUEST, "it was made with the key: restore it from a backup")
            asked = CertificateRequest.parse(pem, str(identity / files.REQUEST))
            signed.append((member.uri, self.authority.sign(asked, days=self._days).decode()))
        return signed

    def _facts(self, organisation: str, signed: dict[str, str]) -> KitFacts:
        one = self.config.organisations[organisation]
        return KitFacts(
            federation=self.config.name,
            organisation=organisation,
            coordinator=str(self.config.coordinator),
            runs_coordinator=one.coordinator,
            has_party=one.service == "party",
            service=one.service if one.service in ("helper", "key service") else msgspec.UNSET,
            helpers=self.config.running("helper") or msgspec.UNSET,
            key_services=self.config.running("key service") or msgspec.UNSET,
            users=one.users,
            parties=self.config.parties,
            all_users=self.config.users,
            authority=files.read_file(self.config.authority / files.AUTHORITY, "").decode(),
            certificates=signed,
        )

    def _write(self, organisation: str, signed: dict[str, str]) -> Path:
        data = msgspec.json.encode(self._facts(organisation, signed))
        sealed = SignedKit(
            kit=data.decode(), signature=base64.b64encode(self.authority.sign_data(_PURPOSE, data)).decode()
        )
        path = self.root / KITS / f"{organisation}.kit"
        files.make_folder(path.parent)
        files.write_file(path, msgspec.json.format(msgspec.json.encode(sealed), indent=2) + b"\n")
        return path

    def _signed_before(self, organisation: str) -> dict[str, str]:
        """The certificates of the kit that was written before, of members that are still there, and still valid."""
        path = self.root / KITS / f"{organisation}.kit"
        if not path.exists():
            return {}
        before = read_kit(path)
        if before.fingerprint != self.authority.fingerprint:
            raise IdentityError(f"{path} is of another authority; move it away")
        members = {member.uri for member in self.config.organisations[organisation].members(organisation)}
        return before.certificates if set(before.certificates) == members and self._are_valid(before) else {}

    def _are_valid(self, kit: KitFacts) -> bool:
        """Whether no certificate of a kit has expired or was revoked since."""
        valid = {one.serial for one in self.authority.issued() if one.state == "valid"}
        held = (files.parse_certificate(pem.encode(), "the kit") for pem in kit.certificates.values())
        return all(one.serial_number in valid for one in held)


# --- the organisation ---


def read_kit(path: Path) -> KitFacts:
    """Read a kit, and check that the authority that it names has signed it.

    Whether that authority is the federation's own is for the caller to find out: compare `KitFacts.fingerprint`.
    """
    data = files.read_file(path, "name the kit that the operator sent")
    try:
        sealed = from_json(data, SignedKit)
        signature = base64.b64decode(sealed.signature, validate=True)
        kit = from_json(sealed.kit.encode(), KitFacts)
        Address.parse(kit.coordinator)
        others = (*(kit.helpers or ()), *(kit.key_services or ()))
        for name in (kit.federation, kit.organisation, *kit.parties, *kit.all_users, *others):
            files.check_name(name)
        members = {member.uri for member in kit.members}
    except (msgspec.MsgspecError, ValueError, IdentityError) as error:
        raise IdentityError(f"{path} is not a kit of woodlot provision: {error}") from None
    issuer = files.parse_authority(kit.authority.encode(), str(path))
    try:
        key = files.public_key(issuer)
        key.verify(signature, to_sign(_PURPOSE, sealed.kit.encode()), ec.ECDSA(SHA256(), deterministic_signing=True))
    except InvalidSignature:
        raise IdentityError(
            f"{path} is not signed by the authority that it names: it was changed on the way; ask for it again"
        ) from None
    if files.federation_of(issuer) != kit.federation or not members or not set(kit.certificates) <= members:
        raise IdentityError(_CONTRADICTS.format(path))
    for uri, pem in kit.certificates.items():
        _check_bundle(uri, pem.encode(), issuer, path)
    return kit


def _check_bundle(uri: str, pem: bytes, issuer: Certificate, path: Path) -> None:
    """Refuse certificates of another authority than the one whose fingerprint is compared, or for another member."""
    own, *others = files.parse_certificates(pem, str(path))
    files.check_issued(own, issuer, f"a certificate in {path}")
    if others != [issuer] or files.subject_of(own, str(path)).uri != uri:
        raise IdentityError(_CONTRADICTS.format(path))


def join(path: Path, folder: Path, trusts: Callable[[KitFacts], None]) -> Joined:
    """Take a kit: make the keys that are missing; install certificates, and write settings, where it has them.

    Parameters
    ----------
    path : Path
        The kit.
    folder : Path
        The organisation's.
    trusts : callable
        Raises unless the authority's fingerprint is the operator's. Not asked where an identity here trusts it already.

    """
    kit = read_kit(path)
    known = _known_authority(folder, kit.members)
    if known is None:
        trusts(kit)
    elif known != kit.fingerprint:
        raise IdentityError(
            f"{folder} belongs to a federation with another authority ({grouped(known)}); name another folder"
        )
    return settle(kit, folder)


def settle(kit: KitFacts, folder: Path, revocations: Path | None = None) -> Joined:
    """Install what a trusted kit brings; parameters as for `join`."""
    missing = []
    for member in kit.members:
        identity = member_folder(folder, member) / "identity"
        has_key = (identity / files.KEY).exists()
        if has_key and member.uri in kit.certificates:
            bundle = identity / ".from-operator.pem"
            files.write_file(bundle, kit.certificates[member.uri].encode())
            try:
                install(identity, bundle)
            finally:
                bundle.unlink()
        elif not has_key or not (identity / files.CERTIFICATE).exists():
            missing.append(member)
    if missing:
        path, fingerprint = make_requests(folder, kit.organisation, kit.members)
        return Joined(folder, path, fingerprint, ())
    return Joined(folder, None, "", _write_settings(kit, folder, revocations))


def _known_authority(folder: Path, members: Sequence[Subject]) -> str | None:
    """The fingerprint of the authority that identities here trust, if any does."""
    for member in members:
        path = member_folder(folder, member) / "identity" / files.AUTHORITY
        if path.exists():
            certificate = files.parse_authority(files.read_file(path, ""), str(path))
            return files.fingerprint(files.public_key(certificate))
    return None


def _write_settings(kit: KitFacts, folder: Path, revocations: Path | None) -> tuple[Path, ...]:
    """Write the files that are not there yet: whatever the organisation has changed stays."""
    address, texts = Address(kit.coordinator), dict[Path, str]()
    commands = []
    if kit.runs_coordinator:
        commands.append("coordinator coordinator/coordinator.toml")
    if kit.runs_coordinator:
        path = folder / "coordinator" / "coordinator.toml"
        source = None if revocations is None else os.path.relpath(revocations, path.parent)
        texts[path] = coordinator_settings(address, source)
    if kit.has_party:
        commands.append("party party/party.toml")
        members = {"helpers": kit.helpers or (), "key_services": kit.key_services or ()}
        own = party_settings(kit.federation, kit.organisation, address, kit.all_users, members)
        texts[folder / "party" / "party.toml"] = own
    if kit.service:
        file, command = MEMBER_FILES[kit.service]
        commands.append(f"{command} party/{file}")
        texts[folder / "party" / file] = member_settings(kit.federation, kit.service, address, kit.all_users)
    for user in kit.users:
        texts[folder / "users" / user / "job.toml"] = job_settings(address, kit.parties)
    if commands:
        texts[folder / "start.sh"] = start_script(kit.federation, kit.organisation, commands)
    new = {path: text for path, text in texts.items() if not path.exists()}
    for path, text in new.items():
        files.write_file(path, text.encode())
    return tuple(new)
