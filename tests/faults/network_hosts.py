"""Hosts of their own, in network namespaces, for tests of what travels between machines."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PermissionError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Network:
    """Namespaces with a link each to a switch, by the names of hosts and their addresses."""

    def __init__(self, hosts: Mapping[str, str]) -> None:
        self._hosts = hosts
        self._mark = f"wl{os.getpid()}"
        self._switch = f"{self._mark}-switch"
        self._spaces: list[str] = []

    def build(self) -> None:
        self._add(self._switch)
        ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._switch, "link", "set", "bridge", "up")
        for name, address in self._hosts.items():
            space, port = self.space(name), f"to-{name}"[:15]
            self._add(space)
            ip("-n", space, "link", "add", "uplink", "type", "veth", "peer", "name", port, "netns", self._switch)
            ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
            ip("-n", space, "address", "add", f"{address}/24", "dev", "uplink")
            ip("-n", space, "link", "set", "uplink", "up")
            ip("-n", space, "link", "set", "lo", "up")

    def _add(self, space: str) -> None:
        ip("netns", "add", space)
        self._spaces.append(space)

    def space(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def enter(self, name: str) -> list[str]:
        """What a command on that host starts with."""
        return ["ip", "netns", "exec", self.space(name)]

    def set_link(self, name: str, state: str) -> None:
        """Pull the cable at the switch, or put it back: the host itself notices nothing but silence."""
        ip("-n", self._switch, "link", "set", f"to-{name}"[:15], state)

    def close(self) -> None:
        for space in reversed(self._spaces):
            ip("netns", "delete", space)


@contextmanager
def network_of(hosts: Mapping[str, str]) -> Iterator[Network]:
    """Hosts at these addresses; skips the test where the machine does not permit it."""
    if shutil.which("ip") is None:
        pytest.skip("the command ip (iproute2) is not installed")
    made = Network(hosts)
    try:
        try:
            made.build()
        except PermissionError as error:
            pytest.skip(f"network namespaces are not permitted here: {error}")
        yield made
    finally:
        made.close()
