"""Real objects of every kind that is fuzzed, small: where the fuzzer starts from, and what the short form damages."""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from processes import small_tables
from small_jobs import PLAN, train_order, user_of
from world import World, running

import woodlot as wl
from model_parts import DEALING, FRAME, Y, classifier
from woodlot.engines.signed_order import SignedOrder
from woodlot.federation import Labels
from woodlot.identity.authority import Authority
from woodlot.identity.certificates import key_bytes
from woodlot.identity.identity import Identity, install, request
from woodlot.identity.receipts import MemberKey, SignedRequest, Statement, make_receipt, signature_of
from woodlot.jobs.order_seal import common_fields, sign_order
from woodlot.jobs.orders import AlignOrder, Order, Part, PredictOrder, TrainOrder
from woodlot.jobs.padding import pad
from woodlot.jobs.revocable.revocable_orders import PredictEncryptedOrder
from woodlot.protocols.core.message import Message
from woodlot.protocols.linear.linear_model import LinearPlan
from woodlot.runtime import codec
from woodlot.runtime.frames import FrameKind, Label, split


def save_models(root: Path) -> None:
    """One small model of every format, below a folder."""
    small: dict[str, Any] = {"n_estimators": 2, "random_state": 0}
    numbers = FRAME[["bank_age", "shop_visits"]].fillna(0.0).to_numpy()
    y = (numbers[:, 0] > 0).astype(int)
    classifier(n_estimators=2, max_depth=2).fit(FRAME, Y).save(root / "forest")
    wl.FederatedLogisticRegression(parties=DEALING).fit(FRAME, Y).save(root / "linear")
    rows = {"parties": 3, **small}
    wl.FederatedExtraTreesClassifier(max_depth=2, **rows).fit(numbers, y).save(root / "rows")
    revocable = wl.RevocableForestClassifier(parties=DEALING, max_depth=2, encryption="simulated", **small)
    revocable.fit(FRAME.fillna({"shop_visits": 0.0}), Y).save(root / "revocable")


class Federation:
    """An authority, a party, a coordinator and a user, and things that they have signed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.authority = Authority.create(root / "authority", "fuzz", days=30)
        self.ca = (root / "authority" / "ca.pem").read_bytes()
        self.requests = {}
        self.empty_list = (root / "authority" / "revoked.pem").read_bytes()
        for role, name in (("party", "bank"), ("coordinator", "coordinator"), ("user", "alice"), ("user", "fired")):
            asked = request(root / name, role, name)
            self.requests[name] = (root / name / "request.pem").read_bytes()
            (root / f"{name}.pem").write_bytes(self.authority.sign(asked, days=20))
            install(root / name, root / f"{name}.pem")
        self.authority.revoke("fired")
        self._identities = {name: Identity.load(root / name) for name in self.requests}

    def identity(self, name: str) -> Identity:
        return self._identities[name]

    def orders(self) -> list[bytes]:
        """Orders of some kinds, and a line of text for engines."""
        alice, bank = self.identity("alice"), self.identity("bank")

        def fields() -> dict[str, Any]:
            here = {"federation": bank.federation, "coordinator": "coordinator"}
            return common_fields({"bank": Part(table="t", label="y")}, {"bank": bank.certificate}, **here)

        made = [
            AlignOrder(**fields()),
            TrainOrder(**fields(), holder="bank", plan=PLAN, settings="{}"),
            PredictOrder(**fields(), model="0" * 32),
            PredictEncryptedOrder(
                **fields(), model="0" * 32, helper="bank", key_service="bank", scheme="shares", epoch=1, rows=1,
                columns=1, splits=bytes(32), values=bytes(36), proof=b"",
            ),
        ]  # fmt: skip
        return [*(sign_order(order, alice)[0] for order in made), SignedOrder.by(alice, made[0]).encode().encode()]

    def statement(self, when: datetime | None = None) -> dict[str, Any]:
        """What a receipt states."""
        digest = "0" * 64
        return {
            "party": "shop", "level": 1, "model": "m",
            "created": "2026-01-01T00:00:00+00:00" if when is None else when.isoformat(),
            "parties_before": ["bank", "shop"], "parties_after": ["bank"],
            "before": {"bank": digest, "shop": digest}, "after": {"bank": digest},
            "epoch_before": 0, "epoch_after": 1, "keys_before": 0, "keys_after": 0,
            "trees": [{"tree": 0, "removed": 2, "regrown": 1}], "nodes_before": 9, "nodes_after": 8,
            "cost": {"rounds": 1, "bytes": 2, "seconds": 0.5, "nodes_searched": 3},
            "scores": {"measure": "R2", "rows": "held out", "before": 0.5, "after": 0.4},
            "notified": ["bank"], "revoked_key": "", "rows": "of the training",
        }  # fmt: skip

    def receipt(self) -> bytes:
        """A receipt of a revocation."""
        data = b'{"leaver": "shop", "level": 1, "model": "m"}'
        alice = self.identity("alice")
        signed = signature_of(alice.certificate, alice.sign(data, "revocation request"))
        asked = SignedRequest(data=data, purpose="revocation request", signed=signed)
        made = make_receipt(
            msgspec.convert(self.statement(), Statement), asked, MemberKey(self.identity("coordinator"))
        )
        return made.to_json().encode()

    def documents(self) -> list[bytes]:
        """Certificates, requests, lists and keys."""
        folder = self.authority.folder
        found = [(folder / name).read_bytes() for name in ("ca.pem", "revoked.pem")]
        found += [*self.requests.values(), *((self.root / f"{name}.pem").read_bytes() for name in self.requests)]
        return [*found, self.empty_list, (self.root / "bank" / "key.pem").read_bytes()]

    def contents(self) -> Iterator[bytes]:
        """What is signed of certificates, lists and requests, each behind its kind."""
        for name in self.requests:
            certificate = (self.root / name / "certificate.pem").read_bytes()
            yield b"\0" + x509.load_pem_x509_certificate(certificate).tbs_certificate_bytes
        yield b"\2" + x509.load_pem_x509_csr(self.requests["bank"]).tbs_certrequest_bytes
        for crl in (self.empty_list, (self.authority.folder / "revoked.pem").read_bytes()):
            yield b"\1" + x509.load_pem_x509_crl(crl).tbs_certlist_bytes


def work(root: Path) -> tuple[World, dict[str, str]]:
    """A federation that has done some jobs and has ended, and their names."""
    world = World(root, small_tables())
    for own in world.settings.values():
        own["policy"]["protocols"] = ["align", "train", "predict", "revoke", "train-linear"]
    with running(world), user_of(world) as user:
        client, labels = user.client, Labels("bank", "late", None)

        def done(order: Order) -> str:
            return client.finish(client.submit(order).job).job

        names = {"alignment": user.align().job, "left": done(train_order(user))}
        names["forest"] = done(train_order(user))
        names["prediction"] = done(user.predict_order(names["forest"], "bank.late", deliver_to="bank"))
        names["revocation"] = done(user.revoke_order(client.find_model(names["left"]), "shop", 1, labels))
        line = LinearPlan(
            task="classes", strength=1.0, fit_intercept=True, standardize=True, balanced=False, class_weight=(),
            max_iter=2, tol=1e-3,
        )  # fmt: skip
        names["line"] = done(user.train_linear_order(line, labels, {}))
    return world, names


def questions() -> list[bytes]:
    """What the pages of the dashboard ask for, and their forms."""
    paths = [
        "/", "/jobs", "/jobs/$forest", "/jobs/$forest/live", "/jobs/$forest/rounds", "/models", "/disclosure?role=bank",
        "/models/$forest?role=bank", "/models/$line?role=shop", "/models/$line?role=coordinator", "/models/$revocation",
        "/models/$forest/contribution", "/models/$forest/trees/1?role=shop",
        "/models/$forest/trees/0/nodes?role=coordinator&root=1&levels=3", "/models/$forest/trees/0/nodes?role=bank",
        "/models/$forest/trees/0/way?role=bank&row=3&table=customers",
        "/models/$forest/trees/0/way?role=coordinator&row=3&alignment=$alignment", "/receipts", "/receipts/$revocation",
        "/receipts/$revocation/file", "/budget", "/answers?role=bank&job=$prediction&table=customers&label=late",
        "/static/style.css", "/nowhere", "/events", f"/models/$forest/trees/{10**30}/nodes?role=bank",
        f"/models/$forest/trees/0/nodes?role=bank&root=-{10**30}&levels={10**30}",
        f"/models/$forest/trees/0/nodes?role=coordinator&levels=-{10**30}",
        f"/models/$forest/trees/0/nodes?role=shop&root={2**63}", "/models/$forest/trees/-1/nodes?role=bank",
        f"/models/$forest/trees/0/way?role=bank&row={10**30}&table=customers",
    ]  # fmt: skip
    forms = [
        "/jobs/$forest/cancel\n", "/jobs/$forest/resume\n",
        "/models/$forest/revoke\nparty=shop&level=3&label=bank.late&tables=customers",
        "/models/$forest/contribution\nlabel=bank.late&tables=bank%3Dcustomers+shop%3Dcustomers",
    ]  # fmt: skip
    return [*(f"GET {path}\n".encode() for path in paths), *(f"POST {form}".encode() for form in forms)]


def messages() -> list[bytes]:
    """Every message of trainings and predictions over two parties, open and with shares."""
    seen: dict[type[Message], bytes] = {}

    def listen(data: bytes) -> None:
        seen.setdefault(type(codec.decode(data)), data)

    codec.listeners.append(listen)
    try:
        model = classifier(n_estimators=20, max_depth=3, oob_score=True).fit(FRAME, Y)
        for method in ("one-round", "classical"):
            model.predict(FRAME, method=method)
        numbers = FRAME[["bank_age", "shop_visits"]].fillna(0.0).to_numpy()
        shared = wl.RevocableForestClassifier(3, max_depth=2, random_state=0)
        shared.fit(numbers, numbers[:, 0] > 0).predict_encrypted(numbers[:2])
    finally:
        codec.listeners.remove(listen)
    return list(seen.values())


def connections(encoded: list[bytes]) -> list[bytes]:
    """The same messages in frames, plain and compressed, each behind its length."""
    found = []
    for number, data in enumerate(encoded):
        label = Label(FrameKind.request, "0" * 31 + "1", number)
        for compress in (False, True):
            frames = list(split(label, data, frame_limit=4096, compress=compress))
            found.append(b"".join(struct.pack("<H", len(frame)) + frame for frame in frames))
    return found


def table_files() -> list[bytes]:
    """A table of numbers, text and missing values in every format; the first byte names the format."""
    table = pa.table({
        "id": ["a1", "a2", "a3", "a4"],
        "x": [1.5, None, -2.0, 1e300],
        "town": pa.array(["Oslo", None, "Li\"ma", "Uster"]).dictionary_encode(),
        "n": pa.array([1, 2, None, 4], pa.int16()),
        "flag": [True, False, None, True],
    })  # fmt: skip
    csv = io.BytesIO()
    pa.csv.write_csv(table.set_column(2, "town", table["town"].cast(pa.string())), csv)
    parquet, feather, stream = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pa.parquet.write_table(table, parquet)
    pa.feather.write_feather(table, feather, compression="uncompressed")
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    files = [csv, io.BytesIO(gzip.compress(csv.getvalue(), mtime=0)), parquet, feather]
    found = [bytes([kind | disk]) + file.getvalue() for kind, file in enumerate(files) for disk in (0, 0x80)]
    return [*found, bytes([3]) + stream.getvalue()]


def settings_files() -> list[bytes]:
    """Settings of every role."""
    return [
        b'listen = "0.0.0.0:7443"\nstate = "s"\nmessage_limit = "1 GiB"\nwait_for_parties = "1 h"\n',
        b'coordinator = "host:7443"\nmemory = "2 GB"\ncluster = "tcp://host:8786"\n[alignment]\nsecret_file = "s"\n'
        b'[tables.t]\npath = "t.csv"\nid = "id"\ncolumns = ["a", "b"]\n[tables.q]\nsql = "SELECT 1"\n'
        b'url = "sqlite:///d"\nid = "id"\ncolumns = "*"\nlabels = ["late"]\nweights = ["w"]\nfeatures = ["a"]\n'
        b'[policy]\ntrain = ["alice"]\nlabels_to_coordinator = true\nmin_samples_leaf = 5\nmin_rows = 10\n'
        b'receive = ["alice"]\n'
        b'wire_forms = ["sealed"]\npredictions_per_day = 5\ntrainings_per_day = "unlimited"\n'
        b"[privacy]\nepsilon = 1.5\ndelta = 1e-6\n",
        b'coordinator = "host:7443"\nallow_same_host = true\n[policy]\ntrain = ["*"]\n',
        b'coordinator = "host:7443"\n[job]\ny = "bank.late"\ntask = "classification"\n'
        b'tables = {bank = "a", shop = "b"}\n'
        b"[forest]\nn_estimators = 10\n[align]\nmethod = 'psi'\n",
    ]


def seeds(target: str) -> Iterator[bytes]:
    """What a target starts from."""
    import targets
    from workshop import federation, worked

    if target in ("codec", "frames"):
        encoded = messages()
        yield from encoded if target == "codec" else connections(encoded)
    elif target in ("models", "forests", "archives"):
        for number, part in enumerate(targets.known_parts()):
            if target == "models":
                yield bytes([number]) + part.pack()
            elif target == "archives":
                yield part.arrays
            else:
                yield bytes([number]) + np.random.default_rng(number).bytes(24)
        if target == "archives":
            plain = io.BytesIO()
            np.save(plain, np.arange(6).reshape(2, 3))
            yield plain.getvalue()
    elif target == "receipts":
        yield federation().receipt()
    elif target == "orders":
        yield from federation().orders()
    elif target == "certificates":
        yield from federation().documents()
        yield key_bytes(ec.generate_private_key(ec.SECP384R1()))
    elif target == "statements":
        yield b""
        for which in range(48):  # each thing that it states by itself, then several at once
            yield from (bytes([which, how, value]) for how, value in ((3, 200), (4, 0), (4, 7), (2, 0)))
        for number in range(8):
            yield np.random.default_rng(number).bytes(3 + 3 * number)
    elif target == "parts":
        part = Part(table="customers of the whole country", label="y" * 40, columns=("a" * 40, "b"))
        yield pad(msgspec.json.encode(part))
        for n in (0, 1, 40):
            yield pad(msgspec.msgpack.encode([b"i" + bytes(9), b"tsome text"] * n + [b"t" + b"x" * 60]))
    elif target == "issued":
        yield from federation().contents()
    elif target == "state":
        for number, path in enumerate(worked().files):
            if path.suffix != ".sqlite":
                yield bytes([0x80 | number]) + path.read_bytes()
            yield bytes([number]) + np.random.default_rng(number).bytes(16)
            yield bytes([number]) + np.random.default_rng(number).bytes(3)
    elif target == "requests":
        yield from questions()
    elif target == "configuration":
        yield from settings_files()
    else:
        yield from table_files()
