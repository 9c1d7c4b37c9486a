"""Start-up kits: what an operator signs and an organisation takes, and what both refuse."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from woodlot.exceptions import ConfigError, IdentityError
from woodlot.identity.certificates import Subject, read_file
from woodlot.identity.identity import Identity
from woodlot.service.config import CoordinatorConfig, JobConfig, MemberConfig, PartyConfig
from woodlot.service.federation_file import EXAMPLE, FederationConfig
from woodlot.service.kits import (
    KitFacts,
    Operator,
    check_same,
    join,
    make_requests,
    read_kit,
    read_requests,
    requests_fingerprint,
)

SHOP = (Subject("party", "shop"), Subject("user", "carol"))


def believe(kit: KitFacts) -> None:
    """The operator has read out this fingerprint."""


def refuse(kit: KitFacts) -> None:
    raise IdentityError("not the operator's")


def federation(folder: Path, **changes: Any) -> Operator:
    raw = tomllib.loads(EXAMPLE) | {"coordinator": "localhost:7443"} | changes
    raw["organisations"]["shop"] = {"users": ["carol"]}
    return Operator(FederationConfig.parse(raw, folder=folder, origin="federation.toml"), folder)


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    (tmp_path / "a").mkdir()
    return federation(tmp_path / "a")


def asked(path: Path) -> list[Any]:
    return read_requests(read_file(path, ""), str(path))


def signed_kit(operator: Operator, folder: Path) -> Path:
    path, fingerprint = make_requests(folder, "shop", SHOP)
    requests = asked(path)
    assert requests_fingerprint(requests) == fingerprint
    return operator.sign(operator.asked_for(requests, "shop-request.pem"), requests)


def test_the_example_is_a_federation() -> None:
    config = FederationConfig.parse(tomllib.loads(EXAMPLE), folder=Path("/f"), origin="federation.toml")
    assert config.parties == ("bank", "shop")
    assert config.users == ("alice",)
    assert config.authority == Path("/f/authority")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: raw.pop("name"), "the setting name is missing"),
        (lambda raw: raw.update(name="a b"), "cannot be a name"),
        (lambda raw: raw.update(coordinator="nowhere"), "is not an address"),
        (lambda raw: raw.update(organisations={}), "0 organisations run the coordinator"),
        (lambda raw: raw.update(organisations=[1]), "must be sections"),
        (lambda raw: raw["organisations"]["shop"].update(coordinator=True), "2 organisations run the coordinator"),
        (lambda raw: raw["organisations"]["shop"].update(users=["Bank"]), "name of two members"),
        (lambda raw: raw["organisations"]["shop"].update(users=["coordinator"]), "cannot be named"),
        (lambda raw: raw["organisations"]["shop"].update(party=False), "has no party"),
        (lambda raw: raw["organisations"]["shop"].update(user=[]), "did you mean 'users'"),
        (lambda raw: raw["organisations"]["bank"].update(helper=True), "the coordinator and the helper; together"),
        (
            lambda raw: raw["organisations"]["shop"].update(helper=True, key_service=True),
            "the helper and the key service; together",
        ),
        (lambda raw: raw["organisations"].update({"a/../b": {}}), "cannot be a name"),
    ],
)
def test_a_wrong_federation_says_what_is_wrong(change: Callable[[dict[str, Any]], object], said: str) -> None:
    raw = tomllib.loads(EXAMPLE)
    change(raw)
    with pytest.raises(ConfigError, match=rf"federation\.toml: .*{said}"):
        FederationConfig.parse(raw, folder=Path("/f"), origin="federation.toml")


def test_an_organisation_joins_with_keys_of_its_own(operator: Operator, tmp_path: Path) -> None:
    folder = tmp_path / "b" / "shop"
    kit = signed_kit(operator, folder)
    keys = {path: path.read_bytes() for path in folder.rglob("key.pem")}
    assert len(keys) == 2
    for key in keys.values():
        assert key not in kit.read_bytes()
    assert "PRIVATE" not in kit.read_text()
    done = join(kit, folder, believe)
    assert done.request is None
    assert {path: path.read_bytes() for path in folder.rglob("key.pem")} == keys
    assert Identity.load(folder / "party" / "identity").name == "shop"
    assert Identity.load(folder / "users" / "carol" / "identity").role == "user"
    assert {path.relative_to(folder).as_posix() for path in done.written} == {
        "party/party.toml", "users/carol/job.toml", "start.sh",
    }  # fmt: skip


def test_the_files_that_are_written_can_be_read(operator: Operator, tmp_path: Path) -> None:
    folder = tmp_path / "b" / "shop"
    join(signed_kit(operator, folder), folder, believe)
    here = operator.join_here()["bank"].folder
    party = PartyConfig.load(folder / "party" / "party.toml")
    assert (party.coordinator, party.policy.train, party.policy.receive) == ("localhost:7443", ("alice", "carol"), ())
    assert JobConfig.load(here / "users" / "alice" / "job.toml").job.parties == ("bank", "shop")
    coordinator = CoordinatorConfig.load(here / "coordinator" / "coordinator.toml")
    assert coordinator.listen == "localhost:7443"
    assert coordinator.revocation_file.resolve() == operator.config.authority / "revoked.pem"
    assert not list(here.rglob("*-request.pem"))


def test_helper_and_key_service_get_kits_too(tmp_path: Path) -> None:
    raw = tomllib.loads(EXAMPLE) | {"coordinator": "localhost:7443"}
    raw["organisations"] |= {"notary": {"helper": True}, "vault": {"key_service": True}}
    operator = Operator(FederationConfig.parse(raw, folder=tmp_path, origin="federation.toml"), tmp_path)
    assert operator.config.parties == ("bank", "shop")
    for name, file, command in (
        ("notary", "helper.toml", "party --role helper"),
        ("vault", "keys.toml", "identity keys"),
    ):
        folder = tmp_path / "elsewhere" / name
        requests = asked(make_requests(folder, name, (Subject("party", name),))[0])
        done = join(operator.sign(operator.asked_for(requests, "request"), requests), folder, believe)
        assert {path.name for path in done.written} == {file, "start.sh"}
        assert f'"$WOODLOT" {command} party/{file} &' in (folder / "start.sh").read_text()
        member = MemberConfig.load(folder / "party" / file)
        assert (member.coordinator, member.policy.train) == ("localhost:7443", ("alice",))
        assert Identity.load(member.identity).name == name
    party = PartyConfig.load(operator.join_here()["bank"].folder / "party" / "party.toml")
    assert (party.policy.helpers, party.policy.key_services) == (("notary",), ("vault",))


def test_kits_of_a_federation_without_them_are_those_of_before(operator: Operator, tmp_path: Path) -> None:
    kit = signed_kit(operator, tmp_path / "b" / "shop").read_text()
    assert not [field for field in ("service", "helpers", "key_services") if f'"{field}' in kit.replace("\\", "")]


def test_what_the_organisation_has_changed_stays(operator: Operator, tmp_path: Path) -> None:
    folder = tmp_path / "b" / "shop"
    kit = signed_kit(operator, folder)
    join(kit, folder, believe)
    (folder / "party" / "party.toml").write_text("mine")
    (folder / "start.sh").write_text("mine too")
    assert join(kit, folder, refuse).written == ()  # it trusts this authority: nobody is asked again
    assert (folder / "party" / "party.toml").read_text() == "mine"
    assert (folder / "start.sh").read_text() == "mine too"


def test_a_kit_may_come_before_the_keys(operator: Operator, tmp_path: Path) -> None:
    folder = tmp_path / "b" / "shop"
    path, signed = operator.write_kits()["shop"]
    assert not signed
    first = join(path, folder, believe)
    assert first.request == folder / "shop-request.pem"
    assert not (folder / "party" / "party.toml").exists()
    requests = asked(first.request)
    second = join(operator.sign("shop", requests), folder, believe)
    assert second.request is None
    assert operator.write_kits()["shop"][1], "provisioning again keeps what was signed"


def test_an_authority_that_is_not_the_operators_gets_nothing(operator: Operator, tmp_path: Path) -> None:
    folder = tmp_path / "b" / "shop"
    kit = signed_kit(operator, folder)
    with pytest.raises(IdentityError, match="not the operator's"):
        join(kit, folder, refuse)
    assert not list(folder.rglob("ca.pem"))
    assert not list(folder.rglob("*.toml"))


def test_a_kit_of_another_federation_does_not_take_over(operator: Operator, tmp_path: Path) -> None:
    folder = tmp_path / "b" / "shop"
    join(signed_kit(operator, folder), folder, believe)
    (tmp_path / "evil").mkdir()
    other = federation(tmp_path / "evil")
    path = other.sign("shop", asked(folder / "shop-request.pem"))
    with pytest.raises(IdentityError, match="another authority"):
        join(path, folder, believe)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("localhost:7443", "evil.example:7443"),
        ('\\"carol\\"', '\\"mallory\\"'),
        ("woodlot kit 1", "woodlot kit 2"),
        ('\\"has_party\\":true', '\\"has_party\\":false'),
    ],
)
def test_a_kit_that_was_changed_on_the_way_is_refused(
    operator: Operator, tmp_path: Path, before: str, after: str
) -> None:
    folder = tmp_path / "b" / "shop"
    kit = signed_kit(operator, folder)
    text = kit.read_text()
    assert before in text
    kit.write_text(text.replace(before, after))
    with pytest.raises(IdentityError, match=r"changed on the way|is not a kit"):
        join(kit, folder, believe)
    assert not list(folder.rglob("certificate.pem"))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"kit": "{}", "signature": ""}', "\0" * 100, '{"kit": 1}'])
def test_what_is_no_kit_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "shop.kit"
    path.write_text(text)
    with pytest.raises(IdentityError, match="is not a kit"):
        read_kit(path)


@pytest.mark.parametrize(
    "value",
    ['x:1"\ntrain = ["*"]\n#', "host:99999", "host"],
)
def test_even_a_signed_kit_writes_no_settings_of_its_own(operator: Operator, tmp_path: Path, value: str) -> None:
    """An operator that lies can name another coordinator, and cannot write policies or scripts."""
    folder = tmp_path / "b" / "shop"
    make_requests(folder, "shop", SHOP)
    from msgspec.structs import force_setattr

    force_setattr(operator.config, "coordinator", value)
    with pytest.raises(IdentityError, match="is not a kit"):
        join(operator.write_kits()["shop"][0], folder, believe)


def test_certificates_of_others_keys_are_refused(operator: Operator, tmp_path: Path) -> None:
    """Somebody who has had the operator sign another key under this name gets no organisation to use it."""
    folder = tmp_path / "b" / "shop"
    make_requests(folder, "shop", SHOP)
    kit = signed_kit(operator, tmp_path / "thief" / "shop")
    with pytest.raises(IdentityError, match="is not of the key beside it"):
        join(kit, folder, believe)


def test_the_operator_signs_the_members_of_one_organisation_and_no_others(operator: Operator, tmp_path: Path) -> None:
    for members in (SHOP[:1], (*SHOP, Subject("user", "mallory")), (Subject("party", "bank"),)):
        folder = tmp_path / members[-1].name
        path, _ = make_requests(folder, "shop", members)
        with pytest.raises(IdentityError, match="exactly these members"):
            operator.asked_for(asked(path), "request")
    path, _ = make_requests(tmp_path / "twice", "shop", SHOP)
    with pytest.raises(IdentityError, match="exactly these members"):
        operator.asked_for(asked(path) * 2, "request")


def test_a_second_key_under_the_same_name_is_refused(operator: Operator, tmp_path: Path) -> None:
    signed_kit(operator, tmp_path / "b" / "shop")
    before = len(operator.authority.issued())
    with pytest.raises(IdentityError, match="is in use by"):
        signed_kit(operator, tmp_path / "thief" / "shop")
    assert len(operator.authority.issued()) == before


def test_a_fingerprint_covers_role_name_and_key_of_every_member(tmp_path: Path) -> None:
    path, fingerprint = make_requests(tmp_path / "shop", "shop", SHOP)
    requests = asked(path)
    assert requests_fingerprint(requests[::-1]) == fingerprint
    assert requests_fingerprint(requests[:1]) != fingerprint
    other, _ = make_requests(tmp_path / "other", "shop", SHOP)
    assert requests_fingerprint([requests[0], asked(other)[1]]) != fingerprint
    check_same(fingerprint.upper()[:8] + "  " + fingerprint[8:], fingerprint, "it")
    for said in ("", fingerprint[:-1], fingerprint[:8], "0" * 64):
        with pytest.raises(IdentityError, match="not the one that was given"):
            check_same(said, fingerprint, "it")


def test_provisioning_again_changes_nothing_here(operator: Operator) -> None:
    operator.join_here()
    issued = len(operator.authority.issued())
    again = federation(operator.root)
    assert again.join_here()["bank"].written == ()
    assert len(again.authority.issued()) == issued
    with pytest.raises(IdentityError, match="is the authority of the federation 'loans'"):
        federation(operator.root, name="other")


def test_keys_here_are_for_their_owner_only(operator: Operator) -> None:
    folder = operator.join_here()["bank"].folder
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("key.pem")} == {0o600}


def test_a_kit_is_json_that_can_be_read_before_it_is_trusted(operator: Operator, tmp_path: Path) -> None:
    kit = json.loads(signed_kit(operator, tmp_path / "shop").read_text())
    facts = json.loads(kit["kit"])
    assert facts["organisation"] == "shop"
    assert set(facts["certificates"]) == {"woodlot://party/shop", "woodlot://user/carol"}
