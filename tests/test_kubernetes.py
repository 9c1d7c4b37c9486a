"""The manifests for Kubernetes agree with the code, the image and each other, as far as it shows without a cluster."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from woodlot.cli import app
from woodlot.service.config import CoordinatorConfig, PartyConfig
from woodlot.service.monitor import HEALTH, METRICS
from woodlot.service.settings import DEFAULT_PORT, read_toml

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
IMAGE = (EXAMPLES / "container" / "Containerfile").read_text(encoding="utf-8")
ROLES = ("coordinator", "party")


def documents(role: str) -> dict[str, Any]:
    """The objects of a manifest, by kind."""
    text = (EXAMPLES / "kubernetes" / f"{role}.yaml").read_text(encoding="utf-8")
    found = list(yaml.safe_load_all(text))
    kinds = {one["kind"]: one for one in found}
    assert len(kinds) == len(found)
    return kinds


def pod(role: str) -> Any:
    return documents(role)["StatefulSet"]["spec"]["template"]["spec"]


def config(role: str, tmp_path: Path) -> CoordinatorConfig | PartyConfig:
    """The settings in the manifest, as the service reads them."""
    path = tmp_path / f"{role}.toml"
    path.write_text(documents(role)["ConfigMap"]["data"][f"{role}.toml"], encoding="utf-8")
    return PartyConfig.load(path) if "tables" in read_toml(path) else CoordinatorConfig.load(path)


@pytest.mark.parametrize("role", ROLES)
def test_services_take_the_settings_and_serve_the_ports_that_are_probed(role: str, tmp_path: Path) -> None:
    settings, (container,) = config(role, tmp_path), pod(role)["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert settings.monitor.listen is not None
    assert settings.monitor.listen.port == ports["monitor"]
    assert container["readinessProbe"]["httpGet"] == {"path": HEALTH, "port": "monitor"}
    assert container["livenessProbe"]["tcpSocket"] == {"port": "monitor"}
    notes = documents(role)["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]
    assert notes["prometheus.io/path"] == METRICS
    assert int(notes["prometheus.io/port"]) == ports["monitor"]
    if isinstance(settings, CoordinatorConfig):
        assert settings.listen.port == ports["federation"] == DEFAULT_PORT
        (port,) = documents(role)["Service"]["spec"]["ports"]
        assert (port["port"], port["targetPort"]) == (DEFAULT_PORT, "federation")
    else:
        assert settings.coordinator.port == DEFAULT_PORT
        assert "federation" not in ports
        settings.policy.check_order("train", "alice")


@pytest.mark.parametrize("role", ROLES)
def test_paths_are_mounted_and_commands_exist(role: str, tmp_path: Path) -> None:
    settings, own, (container,) = config(role, tmp_path), pod(role), pod(role)["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    state = documents(role)["StatefulSet"]["spec"]["volumeClaimTemplates"][0]["metadata"]["name"]
    volumes = {volume["name"] for volume in own["volumes"]} | {state}
    assert {mount["name"] for mount in mounts.values()} <= volumes
    assert str(settings.identity) in mounts
    assert str(settings.state.parent) in mounts
    if isinstance(settings, PartyConfig):
        assert all(str(Path(str(table.path)).parent) in mounts for table in settings.tables.values())
        assert mounts["/tables"]["readOnly"]
    command, path = container["args"]
    assert command in typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert (command, path) == (role, f"/etc/woodlot/{role}.toml")
    for folder in re.findall(r"VOLUME \[(.*)\]", IMAGE)[0].replace('"', "").split(", "):
        assert folder in mounts
    (first,) = own["initContainers"]
    words = shlex.split(first["command"][2].replace("&&", " "))
    assert words[:2] == ["umask", "077"]
    assert {"/secret", "/identity", str(settings.state.parent)} == {m["mountPath"] for m in first["volumeMounts"]}


@pytest.mark.parametrize("role", ROLES)
def test_nothing_runs_as_root_or_with_more_rights_than_it_needs(role: str) -> None:
    own = pod(role)
    user = int(re.findall(r"--uid (\d+)", IMAGE)[0])
    context = own["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == user
    assert own["automountServiceAccountToken"] is False
    for container in (*own["initContainers"], *own["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(own)
    assert all("hostPath" not in volume for volume in own["volumes"])
    (secret,) = (volume["secret"] for volume in own["volumes"] if "secret" in volume)
    assert secret["defaultMode"] == 0o400


@pytest.mark.parametrize("role", ROLES)
def test_one_process_has_one_state_folder_and_only_the_coordinator_is_reached(role: str) -> None:
    found = documents(role)
    spec = found["StatefulSet"]["spec"]
    assert spec["replicas"] == 1
    assert spec["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOncePod"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    policy = found["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    opened = {port["port"] for rule in policy["ingress"] if "from" not in rule for port in rule["ports"]}
    assert opened == ({DEFAULT_PORT} if role == "coordinator" else set())
    if role == "coordinator":
        assert found["Service"]["spec"]["selector"] == labels
    else:
        assert "Service" not in found
        assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {DEFAULT_PORT, 53}
