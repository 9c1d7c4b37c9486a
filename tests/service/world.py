"""A whole federation on localhost: fresh identities, a coordinator and parties, in this process or in their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from halts import HANGS
from ports import free_port

from woodlot.identity.authority import Authority
from woodlot.identity.identity import install, request
from woodlot.service.config import CoordinatorConfig, PartyConfig
from woodlot.service.coordinator import Coordinator
from woodlot.service.party import Party

PROTECTS: dict[str, Any] = {
    "min_samples_leaf": 1,
    "min_rows": 1,
    "wire_forms": ["sealed", "decisions", "leaves", "ranks", "classical", "encrypted-splits"],
    "predictions_per_day": "unlimited",
    "trainings_per_day": "unlimited",
    "receive": ["*"],
}
"""The settings that every party's file must have, as open as they can be."""

TRUSTED: dict[str, Any] = {"helpers": ["helper"], "key_services": ["keys"]}
"""Whom parties take as helper and key service, where there are such."""

POLICY = PROTECTS | TRUSTED | {"train": ["alice"], "predict": ["alice", "bob"], "lead": ["coordinator", "holder"]}


class World:
    """Folders of everybody, and the processes that run."""

    def __init__(
        self,
        root: Path,
        tables: Mapping[str, Mapping[str, pa.Table]],
        *,
        id: str = "id",
        labels: Sequence[str] = ("late", "ill"),
        weights: Sequence[str] = (),
    ) -> None:
        self.root = root
        self.authority = Authority.create(root / "authority", "test", days=30)
        self.member("coordinator", "coordinator")
        for user in ("alice", "bob"):
            self.member("user", user)
        self.settings: dict[str, dict[str, Any]] = {}
        for party, held in tables.items():
            self.member("party", party)
            sections: dict[str, dict[str, Any]] = {}
            for name, table in held.items():
                path = root / party / f"{name}.parquet"
                pq.write_table(table, path)
                sections[name] = {"path": str(path), "id": id, "columns": "*"}
                for role, named in {"labels": labels, "weights": weights}.items():
                    sections[name][role] = [column for column in named if column in table.column_names]
            self.settings[party] = {"n_jobs": 1, "tables": sections, "policy": dict(POLICY)}
        self.commands: dict[str, list[str]] = {}
        self.port = free_port()
        # longer than any test is slow on a busy machine; tests of the limit set their own
        self.coordinator_settings: dict[str, Any] = {"wait_for_parties": 600}
        self.coordinator: Coordinator | None = None
        self.parties: dict[str, Party] = {}

    def member(self, role: str, name: str) -> Path:
        """A new identity, signed and installed; returns its folder."""
        folder = self.root / name / "identity"
        folder.parent.mkdir(parents=True, exist_ok=True)
        bundle = self.root / name / "bundle.pem"
        bundle.write_bytes(self.authority.sign(request(folder, role, name), days=10))
        install(folder, bundle)
        return folder

    def key_members(self, policy: Mapping[str, Any]) -> None:
        """A helper and a key service, to be run as processes."""
        for name, command in {"helper": ["party", "--role", "helper"], "keys": ["identity", "keys"]}.items():
            self.member("party", name)
            self.settings[name] = {"n_jobs": 1, "allow_same_host": True, "policy": dict(policy)}
            self.commands[name] = command

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def coordinator_config(self) -> CoordinatorConfig:
        raw = {"listen": f"127.0.0.1:{self.port}", **self.coordinator_settings}
        return CoordinatorConfig.parse(raw, folder=self.root / "coordinator", origin="coordinator.toml")

    def party_config(self, party: str) -> PartyConfig:
        raw = {"coordinator": self.address, **self.settings[party]}
        return PartyConfig.parse(raw, folder=self.root / party, origin="party.toml")

    def start_coordinator(self) -> None:
        self.coordinator = Coordinator(self.coordinator_config())
        self.port = self.coordinator.start()

    def stop_coordinator(self) -> None:
        if self.coordinator is not None:
            self.coordinator.close()
            self.coordinator = None

    def start_party(self, name: str) -> None:
        party = self.parties[name] = Party(self.party_config(name))
        party.start()

    def stop_party(self, name: str) -> None:
        self.parties.pop(name).close()

    def start(self) -> None:
        """Start everybody, and wait until all are connected."""
        self.start_coordinator()
        for name in self.settings:
            self.start_party(name)
        self.wait_connected(*self.parties)

    def wait_connected(self, *names: str) -> None:
        """Wait until parties are connected."""
        for name in names:
            assert self.parties[name].wait_connected(HANGS), name

    def close(self) -> None:
        for name in list(self.parties):
            self.stop_party(name)
        self.stop_coordinator()


@contextlib.contextmanager
def running(world: World) -> Iterator[World]:
    """The world, started, and closed at the end."""
    try:
        world.start()
        yield world
    finally:
        world.close()
