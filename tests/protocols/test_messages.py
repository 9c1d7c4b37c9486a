from __future__ import annotations

import inspect
import math
import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

import woodlot
from woodlot.exceptions import (
    DataError,
    LocalProtocolError,
    ModelFileError,
    PolicyError,
    RemoteProtocolError,
    WoodlotError,
)
from woodlot.jobs import every_message
from woodlot.jobs.job_messages import AskJob, FindModel
from woodlot.protocols.core.message import (
    F64,
    U8,
    ArraySpec,
    Disclosure,
    F64x2,
    Message,
    Refusal,
    Role,
    UInt,
    registered,
)
from woodlot.protocols.core.stakes import KINDS, stake_of
from woodlot.runtime.codec import decode, encode

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "who_sees_what.py"
TOLD = Disclosure(Role.party, Role.coordinator, "nothing: it is a test", "clear")

# Other test modules register messages of their own; these are the product's.
PRODUCT = [message for message in registered().values() if message.__module__.startswith("woodlot.")]


class Sample(Message):
    """Has fields of many kinds."""

    discloses = TOLD

    number: int = 0
    ratio: float = 0.0
    mode: Literal["a", "b"] = "a"
    names: tuple[str, ...] = ()
    settings: dict[str, int] = msgspec.field(default_factory=dict)
    codes: U8 = msgspec.field(default_factory=lambda: np.zeros(0, np.uint8))
    gains: F64 | None = None
    any_width: UInt | None = None
    table: F64x2 | None = None
    masks: tuple[U8, ...] = ()
    columns: dict[str, F64] = msgspec.field(default_factory=dict)


class Family(Message, abstract=True):
    """Never travels itself."""

    discloses: ClassVar[Disclosure] = TOLD

    size: int


class Member(Family):
    """Travels, and takes its disclosure from its family."""

    first: int
    second: int

    def check(self) -> None:
        if self.first > self.second:
            raise ValueError("first comes after second")


def define(name: str, hint: Any = int, /, **namespace: Any) -> type:
    """Define a message of one field."""
    body = {"__module__": __name__, "__annotations__": {"field": hint}, "discloses": TOLD, **namespace}
    return types.new_class(name, (Message,), exec_body=lambda scope: scope.update(body))


def test_the_product_has_messages() -> None:
    assert Refusal in PRODUCT


@pytest.mark.parametrize("message", PRODUCT, ids=lambda message: message.__name__)
def test_every_message_says_what_it_discloses(message: type[Message]) -> None:
    told = message.discloses
    assert len(told.reveals.split()) >= 2, "say in words what the receiver learns"
    assert isinstance(told.sender, Role)
    assert isinstance(told.receiver, Role)
    # the label holder leads a hidden training, and asks its own part by messages that do not leave it
    assert told.sender != told.receiver or told.reveals.startswith("nothing: it stays with")
    assert told.form in get_args(get_type_hints(Disclosure)["form"])


@pytest.mark.parametrize("message", PRODUCT, ids=lambda message: message.__name__)
def test_every_message_has_a_docstring_of_its_own(message: type[Message]) -> None:
    assert (message.__dict__.get("__doc__") or "").strip()
    assert inspect.getdoc(message) != inspect.getdoc(Message)


def test_one_import_registers_every_message() -> None:
    modules = {module.__name__ for module in every_message.MODULES}
    assert {message.__module__ for message in PRODUCT} == modules
    package = Path(woodlot.__file__).parent
    written = {path.relative_to(package).with_suffix("") for path in package.rglob("*_messages.py")}
    assert {"woodlot." + ".".join(path.parts) for path in written} == modules - {"woodlot.protocols.core.message"}


def test_the_document_is_up_to_date() -> None:
    check = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stderr


@pytest.mark.slow
def test_the_check_finds_a_stale_document(tmp_path: Path) -> None:
    document = tmp_path / "docs" / "who-sees-what.md"

    def script(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(SCRIPT), "--output", str(document), *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    missing = script("--check")
    assert missing.returncode == 1
    assert "out of date" in missing.stderr
    assert script().returncode == 0
    text = document.read_text()
    for message in PRODUCT:
        assert f"| `{message.__name__}` | {message.discloses.sender.value} |" in text
    assert script("--check").returncode == 0
    document.write_text(text.replace("Refusal", "Refused"))
    assert script("--check").returncode == 1
    assert document.read_text() != text


def test_fields_are_named_and_frozen() -> None:
    with pytest.raises(TypeError):
        Member(1, 2, 3)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Member(size=1, first=2)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Member(size=1, first=2, second=3).first = 9  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("number", "1", "Expected `int`"),
        ("number", True, "Expected `int`"),
        ("number", np.int64(1), "Expected `int`"),
        ("ratio", np.float64(1), "Expected `float`"),
        ("mode", "c", "Invalid enum value"),
        ("names", ("a", 1), "Expected `str`"),
        ("settings", {"a": "b"}, "Expected `int`"),
        ("codes", [1, 2], "expected an array, got list"),
        ("codes", None, "expected an array, got NoneType"),
        ("codes", np.zeros(1, np.int8), r"dtype \|u1, got \|i1"),
        ("codes", np.zeros(1, bool), r"dtype \|u1, got \|b1"),
        ("codes", np.zeros((1, 1), np.uint8), "1 dimension"),
        ("codes", np.uint8(1), "expected an array, got uint8"),
        ("gains", np.zeros(1, ">f8"), "dtype <f8, got >f8"),
        ("gains", np.zeros(1, np.float32), "dtype <f8, got <f4"),
        ("any_width", np.zeros(1, np.int64), "got <i8"),
        ("table", np.zeros(1), "2 dimension"),
        ("masks", [np.zeros(1, np.uint8)], "a tuple of arrays, got list"),
        ("masks", (np.zeros(1, np.uint8), np.zeros(1)), "got <f8"),
        ("masks", (None,), "expected an array, got NoneType"),
        ("columns", (np.zeros(1),), "a dict of arrays, got tuple"),
        ("columns", {"x": np.zeros(1, object)}, r"got \|O"),
        ("columns", {1: np.zeros(1)}, "Expected `str`"),
    ],
)
def test_a_wrong_field_is_named_when_the_message_is_built(field: str, value: Any, words: str) -> None:
    with pytest.raises(LocalProtocolError, match=f"field '{field}' of message Sample: .*{words}"):
        Sample(**{field: value})


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_any_unsigned_width(dtype: Any) -> None:
    assert Sample(any_width=np.zeros(1, dtype)).any_width is not None


def test_fields_that_do_not_go_together() -> None:
    Member(size=1, first=2, second=2)
    with pytest.raises(LocalProtocolError, match="message Member: first comes after second"):
        Member(size=1, first=3, second=2)


def test_abstract_messages_never_travel() -> None:
    assert "Family" not in registered()
    assert "Message" not in registered()
    assert registered()["Member"] is Member
    assert Member.discloses is TOLD
    for abstract in (Message, lambda: Family(size=1)):
        with pytest.raises(TypeError, match="abstract"):
            abstract()


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (NDArray[np.uint8], "aliases"),
        (np.ndarray, "aliases"),
        (list[U8], "aliases"),
        (tuple[U8, U8], "aliases"),
        (dict[int, U8], "aliases"),
        (U8 | int | None, "aliases"),
        (Any, "name its type"),
        (dict[str, Any], "name its type"),
        (tuple[object, ...], "name its type"),
        (msgspec.defstruct("Loose", [("x", int)]), "forbid unknown fields"),
        (msgspec.defstruct("Holder", [("x", U8)], frozen=True, forbid_unknown_fields=True), "aliases"),
    ],
)
def test_a_field_that_could_not_be_checked_cannot_be_declared(hint: Any, words: str) -> None:
    with pytest.raises(TypeError, match=f"field 'field' of message Undefined: .*{words}"):
        define("Undefined", hint)
    assert "Undefined" not in registered()


FROM_USER = Disclosure(Role.user, Role.coordinator, "nothing: it is a test", "clear")
S = TypeVar("S")
V = TypeVar("V")


def alias(name: str, value: Any, parameters: tuple[Any, ...] = ()) -> Any:
    """Return what a ``type`` statement makes, as NumPy 2.5 makes ``NDArray``, also on Python 3.11."""
    module = typing if sys.version_info >= (3, 12) else pytest.importorskip("typing_extensions")
    return module.TypeAliasType(name, value, type_params=parameters)


def test_arrays_are_found_behind_aliases() -> None:
    array = alias("Array", np.ndarray[Any, np.dtype[S]], (S,))
    codes = alias("Codes", Annotated[array[np.uint8], ArraySpec(("|u1",))])
    pair = alias("Pair", dict[V, S], (S, V))  # its parameters in another order
    same = alias("Same", S, (S,))
    for number, hint in enumerate((codes, codes | None, same[codes], same[same[codes]], alias("Deep", codes))):
        message = define(f"Aliased{number}", hint)
        assert message(field=np.zeros(3, np.uint8)).field.size == 3
        with pytest.raises(LocalProtocolError, match=r"dtype \|u1, got <f8"):
            message(field=np.zeros(3))
    assert define("AliasedTuple", tuple[codes, ...])(field=(np.zeros(1, np.uint8),)).field[0].size == 1
    assert define("AliasedPair", pair[codes, str])(field={"x": np.zeros(1, np.uint8)}).field["x"].size == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="msgspec decodes the aliases of Python 3.12 on only")
def test_arrays_behind_aliases_travel() -> None:
    array = alias("Array", np.ndarray[Any, np.dtype[S]], (S,))
    message = define("AliasedOnTheWire", Annotated[array[np.uint8], ArraySpec(("|u1",))])
    assert decode(encode(message(field=np.arange(3, dtype=np.uint8)))).field.tolist() == [0, 1, 2]


def test_an_alias_hides_nothing_from_the_checks() -> None:
    for hint, words in (
        (alias("Bare", np.ndarray[Any, np.dtype[S]], (S,))[np.uint8], "aliases"),
        (alias("Anything", dict[str, S], (S,))[Any], "name its type"),
        (alias("Opaque", object), "name its type"),
    ):
        with pytest.raises(TypeError, match=f"field 'field' of message Undefined: .*{words}"):
            define("Undefined", hint)
    for hint in (alias("Number", float), alias("Many", tuple[S, ...], (S,))[float]):
        with pytest.raises(TypeError, match=r"field 'field' of message Undefined: .*Finite"):
            define("Undefined", hint, discloses=FROM_USER)
    assert "Undefined" not in registered()


@pytest.mark.parametrize("hint", [float, float | None, tuple[tuple[int, float], ...], dict[int, float]])
def test_a_number_of_a_user_that_could_be_nan_cannot_be_declared(hint: Any) -> None:
    with pytest.raises(TypeError, match=r"field 'field' of message Boundless: .*Finite"):
        define("Boundless", hint, discloses=FROM_USER)
    assert "Boundless" not in registered()


@pytest.mark.parametrize("hint", [str, str | None, tuple[str, ...], dict[str, bytes], Annotated[str, "a note"]])
def test_a_text_of_a_user_that_could_be_of_any_length_cannot_be_declared(hint: Any) -> None:
    with pytest.raises(TypeError, match=r"field 'field' of message Boundless: .*Name"):
        define("Boundless", hint, discloses=FROM_USER)
    assert "Boundless" not in registered()


def test_a_name_is_not_longer_than_one_reads() -> None:
    assert FindModel(name="x" * 200).name == "x" * 200
    with pytest.raises(LocalProtocolError, match="field 'name' of message FindModel"):
        FindModel(name="x" * 201)


def test_a_finite_number_is_taken_and_no_other() -> None:
    assert AskJob(job="", seen=0, wait=1.5).wait == 1.5
    for wait in (math.nan, math.inf, -math.inf):
        with pytest.raises(LocalProtocolError, match="field 'wait' of message AskJob"):
            AskJob(job="", seen=0, wait=wait)


def test_a_message_must_say_what_it_discloses() -> None:
    with pytest.raises(TypeError, match="Silent must say what it discloses"):
        define("Silent", discloses=None)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(TypeError, match=r"Sample of .* exists already"):
        define("Sample")
    assert registered()["Sample"] is Sample


def test_checks_cannot_be_switched_off_by_accident() -> None:
    with pytest.raises(TypeError, match=r"into check\(\)"):
        define("Careless", __post_init__=lambda self: None)


def test_the_registry_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        registered()["Sample"] = Member  # type: ignore[index]


@pytest.mark.parametrize(
    ("error", "kind", "reason", "raised"),
    [
        (DataError("no column"), "data", "no column", DataError("party 'bank': no column")),
        (PolicyError("no"), "policy", "no", PolicyError("party 'bank': no")),
        (RemoteProtocolError("early"), "protocol", "early", LocalProtocolError("party 'bank': early")),
        (LocalProtocolError("x"), "internal", "LocalProtocolError", None),
        (ModelFileError("/home"), "internal", "ModelFileError", None),
        (KeyError("row 3"), "internal", "KeyError", None),
        (ValueError("93517"), "internal", "ValueError", None),
    ],
)
def test_refusals_stand_for_errors(error: Exception, kind: str, reason: str, raised: WoodlotError | None) -> None:
    raised = raised or RemoteProtocolError(f"party 'bank' failed: {reason}")
    refusal = Refusal.from_exception(error)
    assert (refusal.kind, refusal.reason) == (kind, reason)
    again = refusal.to_exception("bank")
    assert type(again) is type(raised)
    assert str(again) == str(raised)


def test_a_long_reason_is_cut() -> None:
    assert len(Refusal.from_exception(DataError("x" * 10_000)).reason) == 2_000


def test_every_message_is_judged_and_an_unknown_one_is_at_its_worst() -> None:
    """A new message needs a line in `woodlot.protocols.core.stakes`."""
    kinds = {message.__name__ for message in PRODUCT}
    assert sorted(kinds - set(KINDS)) == []
    assert sorted(set(KINDS) - kinds) == []
    assert stake_of("NobodyHasJudgedThis") == "rows"
