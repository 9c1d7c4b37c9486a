"""Secure sums that can spare clients: exact through drop-outs at every step, and no use to a dishonest coordinator."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest
from alignments import Between, Liar
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from secure_sums import NAMES, AddUp, Client, Dropping, add_up, changing, clients_of, total, vectors_of

from wire_search import captured
from woodlot.exceptions import DataError, LocalProtocolError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.message import Message
from woodlot.protocols.sums import SumSession, shamir
from woodlot.protocols.sums import sum_messages as msg
from woodlot.protocols.sums.masks import MaskTerms
from woodlot.protocols.sums.neighbours import DENSE, beside, draw_picks, drawn_by, n_picks, neighbours_of
from woodlot.protocols.sums.recovery import ROUNDS, Circle, open_envelope
from woodlot.runtime.codec import decode, encode

# --- Shamir's shares ---


@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.integers(0, 3), st.binary(min_size=32, max_size=32))
@settings(deadline=None, max_examples=40)
def test_enough_shares_give_the_secret_and_fewer_fit_every_secret(
    secret: bytes, threshold: int, more: int, key: bytes
) -> None:
    places = list(range(3, 3 + threshold + more))
    shares = dict(zip(places, shamir.split(secret, threshold, places, key), strict=True))
    for some in itertools.combinations(places, threshold):
        assert shamir.combine({place: shares[place] for place in some}) == secret
    # with one share less, any other secret is the value at 0 of just one polynomial through the shares
    fewer = {place: shares[place] for place in places[: threshold - 1]}
    other = bytes(31) + b"\x07"
    missing = _through({0: other.rjust(33, b"\0"), **fewer}, places[-1])
    assert shamir.combine({**fewer, places[-1]: missing}) == other


def _through(values: dict[int, bytes], at: int) -> bytes:
    """The value of the polynomial through these values at another place."""
    shifted = {place - at: value for place, value in values.items()}
    found = 0
    for place, value in shifted.items():
        weight = 1
        for other in shifted:
            if other != place:
                weight = weight * other * pow(other - place, -1, shamir.PRIME) % shamir.PRIME
        found += int.from_bytes(value) * weight
    return (found % shamir.PRIME).to_bytes(33)


def test_a_wrong_share_gives_another_secret() -> None:
    shares = dict(zip((1, 2, 3), shamir.split(b"s" * 32, 3, (1, 2, 3), b"k" * 32), strict=True))
    shares[2] = (int.from_bytes(shares[2]) ^ 1).to_bytes(33)
    assert shamir.combine(shares) != b"s" * 32
    with pytest.raises(RemoteProtocolError, match="not those of one secret"):
        shamir.combine({1: (2**256).to_bytes(33)})


# --- drop-outs ---

STEPS = (msg.PrepareSums, msg.TakeShares, AddUp, msg.NameSurvivors, msg.Unmask)


def sums_with(parties: dict[str, Any], n_sums: int, length: int, quorum: int) -> tuple[list[Any], SumSession]:
    sessions: list[SumSession] = []
    found = total(parties, [length] * n_sums, spare_after=1.0, quorum=quorum, session=sessions, whose=True)
    return found, sessions[0]


@given(
    st.integers(4, 7),
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 3)), max_size=3),
    st.sampled_from([1, 2**40]),
)
@settings(deadline=None, max_examples=60)
def test_the_sum_is_that_of_those_who_have_answered(n: int, drops: list[tuple[type[Message], int]], scale: int) -> None:
    rng = np.random.default_rng(n)
    vectors = {name: [rng.integers(-9, 9, 4) * scale for _ in range(3)] for name in NAMES[:n]}
    quorum = n // 2 + 1 if n > 4 else 3
    parties: dict[str, Any] = dict(clients_of(vectors, quorum=quorum))
    for name, (kind, at) in zip(NAMES, drops[: n - quorum], strict=False):
        parties[name] = Dropping(parties[name], kind, at)
    found, session = sums_with(parties, 3, 4, quorum)
    assert len(found) == 3
    for which, (whose, sums) in enumerate(found):
        assert sums.tolist() == sum(vectors[name][which] for name in whose).tolist()
        assert len(whose) >= quorum
    assert set(session.left) == {name for name, party in parties.items() if getattr(party, "gone", False)}


@pytest.mark.parametrize("kind", STEPS)
def test_one_too_many_at_any_step_ends_the_run(kind: type[Message]) -> None:
    parties: dict[str, Any] = dict(clients_of(vectors_of(5, 3), quorum=4))
    parties["ash"] = Dropping(parties["ash"], AddUp, 1)  # so that survivors are named
    parties["beech"] = Dropping(parties["beech"], kind, 1)
    with pytest.raises(DataError, match=r"3 of [45] clients are left, and sums need 4"):
        sums_with(parties, 1, 3, 4)


def test_shares_are_dealt_again_for_later_rounds() -> None:
    n_sums = ROUNDS + 2
    vectors = {name: [[k, which] for which in range(n_sums)] for k, name in enumerate(NAMES[:4])}
    parties: dict[str, Any] = dict(clients_of(vectors, quorum=3))
    parties["elm"] = Dropping(parties["elm"], AddUp, ROUNDS + 2)
    found, session = sums_with(parties, n_sums, 2, 3)
    assert [sums.tolist() for _, sums in found] == [[6, 4 * which] for which in range(n_sums - 1)] + [
        [3, 3 * (n_sums - 1)]
    ]
    assert session.left == {"elm": "gone"}


def test_a_client_that_is_restarted_repeats_its_bytes_through_a_drop_out() -> None:
    log: list[tuple[bytes, bytes]] = []

    class Recorded(Client):
        def handle(self, message: Message) -> Message:
            reply = super().handle(message)
            log.append((encode(message), encode(reply)))
            return reply

    vectors = {name: [[1, 2], [3, 4]] for name in NAMES[:4]}
    parties: dict[str, Any] = dict(clients_of(vectors, quorum=3))
    parties["beech"] = Recorded("beech", vectors["beech"], quorum=3)
    parties["cedar"] = Dropping(parties["cedar"], AddUp, 2)
    sums_with(parties, 2, 2, 3)
    kinds = [type(decode(request)).__name__ for request, _ in log]
    assert kinds[2:] == ["PrepareSums", "TakeShares", "AddUp", "Unmask", "AddUp", "NameSurvivors", "Unmask"]
    again = Client("beech", vectors["beech"], quorum=3)
    assert [encode(again.handle(decode(request))) for request, _ in log] == [reply for _, reply in log]
    assert encode(again.handle(decode(log[-1][0]))) == log[-1][1]


# --- many clients ---

CROWD = tuple(f"client {i:02d}" for i in range(DENSE + 24))


def crowd(quorum: int | None) -> dict[str, Any]:
    return dict(clients_of({name: [[k, 1], [k * k, 2]] for k, name in enumerate(CROWD)}, quorum=quorum))


def test_above_some_clients_masks_are_shared_with_drawn_neighbours() -> None:
    parties = {name: Noted(client) for name, client in crowd(None).items()}
    n = len(CROWD)
    assert [sums.tolist() for sums in total(parties, [2, 2])] == [
        [n * (n - 1) // 2, n], [(n - 1) * n * (2 * n - 1) // 6, 2 * n]
    ]  # fmt: skip
    picks = [party.picks for party in parties.values()]
    assert {len(drawn) for drawn in picks} == {n_picks(n)}
    assert len(set(picks)) == n
    graph = neighbours_of(drawn_by({name: party.picks for name, party in parties.items()}))
    assert all(name in graph[other] for name, others in graph.items() for other in others)
    assert min(map(len, graph.values())) >= n_picks(n)
    assert n_picks(100) == 42
    assert n_picks(1000) == 60
    assert n_picks(DENSE) == 0


@pytest.mark.parametrize("n", [2, 3, 30])
def test_clients_of_one_process_share_masks_with_those_beside_them(n: int) -> None:
    names = CROWD[:n]
    vectors = {name: [[k, -k, 1], [k * k, 0, 2]] for k, name in enumerate(names)}
    parties = clients_of(vectors, allow_two=True, in_one_process=True)
    with captured() as seen:
        sums = total(parties, [3, 3], allow_two=True)
    assert [s.tolist() for s in sums] == [np.sum([own[i] for own in vectors.values()], axis=0).tolist() for i in (0, 1)]
    told = [m.values for m in map(decode, seen) if isinstance(m, msg.MaskedVector)]
    assert len(told) == 2 * n
    assert min(int(np.abs(values.view(f"i{values.itemsize}")).max()) for values in told) > n * n  # masked all the same
    for place, name in enumerate(names):
        assert beside(name, names) == {names[place - 1], names[(place + 1) % n]} - {name}


class Noted:
    """A client whose drawn neighbours are noted."""

    def __init__(self, handler: Client) -> None:
        self.handler = handler
        self.picks: tuple[int, ...] = ()

    def handle(self, message: Message) -> Message:
        reply = self.handler.handle(message)
        if isinstance(reply, msg.SumsIntroduced):
            self.picks = reply.introduction.picks
        return reply


@pytest.mark.parametrize("kind", [AddUp, msg.Unmask])
def test_many_clients_can_spare_some(kind: type[Message]) -> None:
    parties = crowd(25)
    for name in CROWD[::8]:
        parties[name] = Dropping(parties[name], kind, 1)
    found, session = sums_with(parties, 2, 2, 25)
    assert set(session.left) == set(CROWD[::8])
    staying = [k for k in range(len(CROWD)) if k % 8]
    everybody = range(len(CROWD))
    first = staying if kind is AddUp else everybody
    assert found[0][1].tolist() == [sum(first), len(first)]
    assert found[1][1].tolist() == [sum(k * k for k in staying), 2 * len(staying)]


@pytest.mark.parametrize("picks", [(), (1,), (*range(1, n_picks(len(CROWD))), 0), (99,) * 20])
def test_a_client_draws_as_many_neighbours_as_it_must(picks: tuple[int, ...]) -> None:
    parties = crowd(None)

    def fewer(message: msg.SumsIntroduced) -> Message:
        return msg.SumsIntroduced(introduction=msgspec.structs.replace(message.introduction, picks=picks))

    parties[CROWD[0]] = Liar(parties[CROWD[0]], changing(msg.SumsIntroduced, fewer))
    with pytest.raises((LocalProtocolError, RemoteProtocolError), match=r"has not drawn|is not signed|is not its own"):
        total(parties, [2])
    few = {name: (1,) if name == "ash" else () for name in NAMES[:3]}
    with pytest.raises(RemoteProtocolError, match="share masks with all others"):
        drawn_by(few)


def test_clients_that_draw_the_same_victim_hold_no_more_of_its_shares() -> None:
    names = tuple(f"client {i:02d}" for i in range(100))
    bad = range(33)  # less than 2 quorum - clients
    victims = tuple(range(40, 40 + n_picks(100)))
    picks = {name: draw_picks(bytes([i]) * 32, i, 100) for i, name in enumerate(names)}
    told = Circle(names, drawn_by(picks), 67)
    lied = Circle(names, drawn_by(picks | {names[i]: victims for i in bad}), 67)
    colluding = {names[i] for i in bad}
    for victim in (names[i] for i in victims):
        assert colluding < lied.neighbours[victim]  # more masks, and no more shares
        assert lied.holders(victim, names) == told.holders(victim, names)
        assert lied.threshold(victim) == told.threshold(victim) == 22
        assert len(colluding.intersection(lied.holders(victim, names))) < lied.threshold(victim) - 1
        assert all(victim in lied.held_by(holder, names) for holder in lied.holders(victim, names))


# --- a coordinator that is not honest ---

VICTIM = "beech"


class Coordinator:
    """Does whatever it likes with clients that have sent their vectors of a round."""

    def __init__(self, n: int = 5, quorum: int = 3, length: int = 2000) -> None:
        rng = np.random.default_rng(1)
        self.quorum, self.names, self.length = quorum, NAMES[:n], length
        self.vectors = {name: [rng.integers(0, 9, length), rng.integers(0, 9, length)] for name in self.names}
        self.clients = clients_of(self.vectors, quorum=quorum)
        protocol = add_up(self.names, [length], spare_after=1.0, quorum=quorum)
        step = next(protocol)
        while not isinstance(next(iter(step.requests.values())), AddUp):
            replies = {name: self.clients[name].handle(message) for name, message in step.requests.items()}
            for name, reply in replies.items():
                if isinstance(reply, msg.SumsPrepared):
                    self.envelopes = getattr(self, "envelopes", {}) | {name: reply.envelopes}
                if isinstance(reply, msg.SumsStarted):
                    self.transcript = reply.transcript
            step = protocol.send(replies)
        self.order = next(iter(step.requests.values())).order
        self.sent = {name: self.clients[name].handle(message).values for name, message in step.requests.items()}

    def without(self, *gone: str) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in gone)

    def echoes(self, survivors: tuple[str, ...], of: tuple[str, ...]) -> dict[str, dict[str, bytes]]:
        """What each is proved by those who are told these survivors."""
        told: dict[str, Any] = {
            name: self.clients[name].handle(msg.NameSurvivors(round=0, survivors=survivors)).echoes for name in of
        }
        return {name: {other: told[other][name] for other in of if other != name} for name in survivors}

    def unmask(self, name: str, survivors: tuple[str, ...], echoes: dict[str, bytes]) -> msg.SharesTold:
        reply = self.clients[name].handle(msg.Unmask(round=0, survivors=survivors, echoes=echoes))
        assert isinstance(reply, msg.SharesTold)
        return reply


def test_a_false_drop_out_tells_nothing() -> None:
    """The coordinator has the victim's vector, and claims that it has not; it gets the sum of the others, no more."""
    world = Coordinator()
    others = world.without(VICTIM)
    echoes = world.echoes(others, others)
    told = {name: world.unmask(name, others, echoes[name]) for name in others}
    # the masks that the victim shares with others are known now...
    place = {name: world.names.index(name) + 1 for name in world.names}
    key = shamir.combine({place[n]: told[n].shares[VICTIM] for n in others[: world.quorum]})
    keys = open_envelope(key, world.envelopes[VICTIM][0], others)
    terms = MaskTerms(world.transcript, 0, world.names, told["ash"].asked)
    left = world.sent[VICTIM].copy()
    for peer in others:
        terms.add(left, np.empty_like(left), keys[peer], VICTIM, peer, sign=-1)
    # ... its own mask is not: what is left of the vector is uniform, and nobody tells a share of the seed
    counts = np.bincount(left.view(np.uint8), minlength=256)
    statistic = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert chi2.ppf(0.0001, 255) < statistic < chi2.ppf(0.9999, 255)
    # (the same attack with the seed gives the numbers)
    seed = world.clients[VICTIM].sums._masker._prepared.seeds[0]  # type: ignore[union-attr]
    terms.add(left, np.empty_like(left), seed, VICTIM, VICTIM, sign=-1)
    assert left[:-2].tolist() == world.vectors[VICTIM][0].tolist()
    for name in others:
        for survivors in (world.names, world.without("elm")):
            with pytest.raises(RemoteProtocolError, match="both secrets of a client are never told"):
                world.unmask(name, survivors, {})
    with pytest.raises(RemoteProtocolError, match="the clients of a round are this one"):
        world.unmask(VICTIM, others, {})


def test_no_client_tells_both_shares_of_another() -> None:
    world = Coordinator()
    before = world.unmask("ash", world.names, {})
    others = world.without(VICTIM)
    for ask in (
        msg.NameSurvivors(round=0, survivors=others),
        msg.Unmask(round=0, survivors=others, echoes={}),
    ):
        with pytest.raises(RemoteProtocolError, match="both secrets of a client are never told"):
            world.clients["ash"].handle(ask)
    assert encode(world.unmask("ash", world.names, {})) == encode(before)  # it was refused, and nothing has changed


@pytest.mark.parametrize(("n", "quorum"), [(4, 3), (5, 3), (6, 4), (7, 4)])
def test_different_lists_of_survivors_tell_one_secret_at_most(n: int, quorum: int) -> None:
    """Whichever way clients are told that the victim has survived or not, one secret of it is short of shares."""
    for split in range(n):
        world = Coordinator(n, quorum, length=3)
        whole, others = world.names, world.without(VICTIM)
        deceived = others[:split]  # they are told that the victim is gone, the rest that all are there
        shares = {"seed": 0, "envelope": 0}
        for name in whole:
            if name not in deceived:
                shares["seed"] += VICTIM in world.unmask(name, whole, {}).shares
        echoes = world.echoes(others, deceived)
        for name in deceived:
            if len(deceived) < quorum:
                with pytest.raises(PolicyError, match="have confirmed who has survived"):
                    world.unmask(name, others, echoes[name])
            else:
                shares["envelope"] += VICTIM in world.unmask(name, others, echoes[name]).shares
        assert min(shares.values()) < quorum


def test_what_others_confirm_is_proved() -> None:
    world = Coordinator()
    others = world.without(VICTIM)
    echoes = world.echoes(others, others)
    mine = echoes["ash"]
    for wrong, words in (
        ({**mine, "cedar": mine["elm"]}, "client 'cedar' has not confirmed to this one"),
        ({**mine, VICTIM: mine["elm"]}, "it is no other survivor"),
        ({**mine, "ash": mine["elm"]}, "it is no other survivor"),
        ({"elm": echoes["cedar"]["elm"], "cedar": mine["cedar"]}, "client 'elm' has not confirmed to this one"),
    ):
        with pytest.raises(RemoteProtocolError, match=words):
            world.unmask("ash", others, wrong)
    with pytest.raises(PolicyError, match="2 clients have confirmed"):
        world.unmask("ash", others, {"elm": mine["elm"]})
    assert VICTIM in world.unmask("ash", others, mine).shares


def test_a_round_is_over_when_the_next_has_begun() -> None:
    world = Coordinator()
    later = msgspec.structs.replace(world.order, round=1)
    with pytest.raises(RemoteProtocolError, match="a question is answered in one round only"):
        world.clients["ash"].handle(AddUp(order=later, which=0))
    fewer = msgspec.structs.replace(later, clients=world.without(VICTIM))
    with pytest.raises(RemoteProtocolError, match="a question is answered in one round only"):
        world.clients["ash"].handle(AddUp(order=fewer, which=0))
    world.clients["ash"].handle(AddUp(order=later, which=1))
    with pytest.raises(RemoteProtocolError, match="the latest round alone"):
        world.unmask("ash", world.names, {})
    with pytest.raises(RemoteProtocolError, match="no shares were dealt for round 0, or it is over"):
        world.clients["ash"].handle(AddUp(order=world.order, which=0))
    far = msgspec.structs.replace(later, round=ROUNDS)
    with pytest.raises(RemoteProtocolError, match=f"no shares were dealt for round {ROUNDS}"):
        world.clients["elm"].handle(AddUp(order=far, which=1))


def test_survivors_are_enough_and_of_the_round() -> None:
    world = Coordinator()
    ash = world.clients["ash"]
    with pytest.raises(PolicyError, match="3 or more"):
        ash.handle(msg.NameSurvivors(round=0, survivors=("ash", "elm")))
    for wrong in (("beech", "cedar", "elm"), ("ash", "cedar", "yew")):
        with pytest.raises(RemoteProtocolError, match="the clients of a round are this one"):
            ash.handle(msg.NameSurvivors(round=0, survivors=wrong))
    for round_id in (1, ROUNDS):
        with pytest.raises(RemoteProtocolError, match="the latest round alone"):
            ash.handle(msg.Unmask(round=round_id, survivors=world.names, echoes={}))
    assert len(world.unmask("ash", world.names, {}).shares) == 5


def test_shares_are_dealt_once_for_a_round() -> None:
    world = Coordinator()
    ash, others = world.clients["ash"], world.without(VICTIM)
    for first in (0, ROUNDS):
        prepare = msg.PrepareSums(first=first, clients=others)
        if first:
            ash.handle(prepare)
        else:
            with pytest.raises(RemoteProtocolError, match="shares are dealt once"):
                ash.handle(prepare)
    with pytest.raises(RemoteProtocolError, match="shares are dealt once"):
        ash.handle(msg.PrepareSums(first=ROUNDS - 1, clients=others))
    echoes = world.echoes(others, others[1:])
    with pytest.raises(RemoteProtocolError, match="or it is over"):  # new shares end the rounds before
        world.unmask("ash", others, echoes["ash"])


@pytest.mark.parametrize("change", ["swapped", "flipped", "missing", "of another round"])
def test_shares_that_were_changed_on_their_way_are_refused(change: str) -> None:
    parties: dict[str, Any] = dict(clients_of(vectors_of(4, 3), quorum=3))

    def changed(message: msg.TakeShares) -> Message:
        shares = dict(message.shares)
        match change:
            case "swapped":
                shares["beech"], shares["cedar"] = shares["cedar"], shares["beech"]
            case "flipped":
                shares["beech"] = shares["beech"][:-1] + bytes([shares["beech"][-1] ^ 1])
            case "missing":
                del shares["beech"]
            case _:
                return msg.TakeShares(first=message.first + 1, clients=message.clients, shares=shares)
        return msg.TakeShares(first=message.first, clients=message.clients, shares=shares)

    parties["ash"] = Between(parties["ash"], changing(msg.TakeShares, changed))
    found, session = sums_with(parties, 1, 3, 3)
    words = {
        "missing": "not those of the clients that have drawn",
        "of another round": "after this client has dealt",
    }
    assert words.get(change, "are not sealed for this one") in session.left["ash"]
    assert found[0][0] == ("beech", "cedar", "elm")


@pytest.mark.parametrize("change", ["share", "envelope", "asked"])
def test_a_client_that_deals_or_tells_what_is_wrong_spoils_the_sum_and_nothing_else(change: str) -> None:
    parties: dict[str, Any] = dict(clients_of(vectors_of(4, 3), quorum=3))

    def told(message: msg.SharesTold) -> Message:
        if change == "asked":
            return msg.SharesTold(round=message.round, asked=b"else", shares=message.shares)
        return msg.SharesTold(round=message.round, asked=message.asked, shares=dict.fromkeys(message.shares, bytes(33)))

    def dealt(message: msg.SumsPrepared) -> Message:
        return msg.SumsPrepared(first=message.first, envelopes=(bytes(48),) * ROUNDS, shares=message.shares)

    if change == "envelope":
        parties["elm"] = Dropping(Liar(parties["elm"], changing(msg.SumsPrepared, dealt)), AddUp, 1)  # type: ignore[arg-type]
    else:
        parties["ash"] = Liar(parties["ash"], changing(msg.SharesTold, told))
    with pytest.raises(
        RemoteProtocolError, match=r"the sum is not one of|not asked the same|cannot be opened|one secret"
    ):
        sums_with(parties, 1, 3, 3)


def test_clients_that_are_asked_different_things_have_no_sum() -> None:
    parties: dict[str, Any] = dict(clients_of({name: [[7, 8], [0, 0]] for name in NAMES[:4]}, quorum=3))
    for name in NAMES[1:4]:
        elsewhere = changing(AddUp, lambda m: AddUp(order=m.order, which=1))
        parties[name] = Between(parties[name], elsewhere)
    with pytest.raises(RemoteProtocolError, match="the clients were not asked the same"):
        sums_with(parties, 1, 2, 3)


def test_sums_that_need_all_have_no_shares_to_tell() -> None:
    clients = clients_of(vectors_of(3, 2))
    total(clients, [2])
    for message in (
        msg.PrepareSums(first=0, clients=NAMES[:3]),
        msg.TakeShares(first=0, clients=NAMES[:3], shares={}),
        msg.NameSurvivors(round=0, survivors=NAMES[:3]),
        msg.Unmask(round=0, survivors=NAMES[:3], echoes={}),
    ):
        with pytest.raises(RemoteProtocolError, match="no client can be spared"):
            clients["ash"].handle(message)
