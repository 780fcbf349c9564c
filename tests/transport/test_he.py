"""The encrypted mean: exact to its flood, opened by two and by nobody alone, refusing what is not what it should be."""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import blobs, require

import fedveil
from fedveil.core.errors import Aborted, Refused
from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.core.streams import stream
from fedveil.transport.he import Encrypted
from fedveil.transport.he.keys import deal, read, write
from fedveil.transport.he.messages import Session, Upload, encode
from fedveil.transport.he.parameters import FRESH, Parameters
from fedveil.transport.he.ring import ring, scratch
from fedveil.transport.he.roles import Client, Computer, Controller, Server
from fedveil.transport.masks.rejected import Foreign, Malformed, Oversized, Rejected, Replayed

require("tenseal")
N, LENGTH = 4, 9000
KNOWN = Parameters(N)


@pytest.fixture(scope="module")
def keys():
    return deal(KNOWN)


def session(length=LENGTH):
    return Session(os.urandom(16), KNOWN, N, length)


def numbers(rows=N, length=LENGTH, seed=0):
    return stream(seed, "numbers").normal(size=(rows, length))


def uploads(where, keys, rows):
    return [Client(where, seat, keys.public).upload(row) for seat, row in enumerate(rows)]


def opened(where, keys, frames):
    computer = Computer(where, keys.computer)
    for frame in frames:
        computer.receive(frame)
    controller = Controller(where, keys.controller)
    return controller.open(computer.close()), controller.seats


def test_the_sum_is_that_of_the_numbers(keys):
    where, rows = session(), numbers()
    found, seats = opened(where, keys, uploads(where, keys, rows))
    assert seats == [0, 1, 2, 3]
    assert np.abs(found - rows.sum(0)).max() <= N * KNOWN.precision < 1e-6
    some, seats = opened(where := session(), keys, uploads(where, keys, rows)[1:3])
    assert seats == [1, 2]
    assert np.abs(some - rows[1:3].sum(0)).max() <= N * KNOWN.precision


@given(st.integers(1, 8192), st.integers(0, 10**6))
@settings(max_examples=25)
def test_packing_is_undone(length, seed):
    values, place = numbers(1, length, seed)[0] * 10, ring(KNOWN)
    assert np.abs(place.unpacked(place.packed(values))[:length] - values).max() < 1e-12


def test_packed_numbers_are_coefficients():
    """Multiplying by X moves them by one place: what later protocols on these ciphertexts rest on."""
    place, values = ring(KNOWN), numbers(1, 8192)[0]
    x = np.zeros(8192)
    x[1] = 1.0
    product = place.seal.Ciphertext()
    encryptor = place.seal.Encryptor(place.context, place.load("PublicKey", (dealt := deal(KNOWN)).public))
    encryptor.encrypt(place.packed(values), product)
    shift, one = place.seal.Plaintext(), np.zeros(8192)
    one[1] = 1.0
    points = np.fft.ifft(one * np.exp(1j * place._turns), norm="forward")[place._slots]
    place._encoder.encode(points.tolist(), 1.0, shift)
    place.evaluator.multiply_plain_inplace(product, shift)
    first, second = (Server(session(), share) for share in (dealt.controller, dealt.computer))
    half = place.residues(first._half(product))
    whole = second._half(place.ciphertext(np.stack([half, place.residues(product, 1)])))
    assert np.abs(place.unpacked(whole) - np.concatenate([[-values[-1]], values[:-1]])).max() < 1e-9


def test_shares_add_up_to_a_key_that_neither_is(keys):
    place = ring(KNOWN)
    shares = [place.load("SecretKey", share) for share in (keys.controller, keys.computer)]
    first, second = (place.residues(share.data(), primes=3) for share in shares)
    moduli = np.array(place.primes, np.uint64)[:, None]
    whole = place.load("SecretKey", place.secret((first + second) % moduli))
    plain, ciphertext = place.seal.Plaintext(), place.fresh(_block(keys, np.ones(10)))
    place.seal.Decryptor(place.context, whole).decrypt(ciphertext, plain)
    assert np.abs(place.unpacked(plain)[:10] - 1).max() < 1e-9
    # uniform: mean and deviation of 24,576 residues, 4 standard errors
    for residues in (first, second):
        share = residues / moduli
        assert abs(share.mean() - 0.5) < 4 / np.sqrt(12 * share.size)
        assert abs(np.corrcoef(share.ravel()[:-1], share.ravel()[1:])[0, 1]) < 4 / np.sqrt(share.size)


def _block(keys, values):
    where = session(len(values))
    frame = Client(where, 0, keys.public).upload(values)
    return msgpack.unpackb(frame)[5][0]


@pytest.mark.parametrize("party", ["controller", "computer", "client"])
def test_nobody_decrypts_alone(keys, party):
    """Each tries with all it has: its share as the key, the other's as zero; clients have a public key only."""
    place, values = ring(KNOWN), numbers(1, 8192)[0]
    ciphertext = place.fresh(_block(keys, values))
    if party == "client":
        public = place.load("PublicKey", keys.public)
        share = place.secret(place.residues(public.data(), 0, primes=3))
    else:
        share = getattr(keys, party)
    plain = place.seal.Plaintext()
    place.seal.Decryptor(place.context, place.load("SecretKey", share)).decrypt(ciphertext, plain)
    found = place.unpacked(plain)
    assert np.abs(found).max() > 100  # as large as the modulus allows, while the numbers are below 6
    assert abs(np.corrcoef(found, values)[0, 1]) < 4 / np.sqrt(8192)


def test_a_public_key_and_all_uploads_but_one_do_not_open_that_one(keys):
    """What the computer sees beside its share, less the others' numbers, is a fresh encryption all the same."""
    place, rows = ring(KNOWN), numbers(2, 8192)
    a, b = (place.fresh(_block(keys, row)) for row in rows)
    place.evaluator.add_inplace(a, b)
    place.evaluator.sub_plain_inplace(a, place.packed(rows[1]))
    half = place.seal.Plaintext()
    place.seal.Decryptor(place.context, place.load("SecretKey", keys.computer)).decrypt(a, half)
    assert abs(np.corrcoef(place.unpacked(half), rows[0])[0, 1]) < 4 / np.sqrt(8192)


def test_an_upload_is_never_the_same_twice(keys):
    where, row = session(10), np.zeros(10)
    client = Client(where, 0, keys.public)
    assert client.upload(row) != client.upload(row)


def test_openings_are_flooded_far_above_the_error_that_depends_on_the_key(keys):
    place = ring(KNOWN)
    values = np.zeros(8192)
    ciphertext = place.fresh(_block(keys, values))
    shares = [place.load("SecretKey", share) for share in (keys.controller, keys.computer)]
    first, second = (place.residues(share.data(), primes=3) for share in shares)
    whole = place.secret((first + second) % np.array(place.primes, np.uint64)[:, None])
    plain = place.seal.Plaintext()
    place.seal.Decryptor(place.context, place.load("SecretKey", whole)).decrypt(ciphertext, plain)
    error = np.abs(place.unpacked(plain) * place.scale).max()
    assert error < 2**FRESH
    where = session(8192)
    sums = [opened(where, keys, uploads(where, keys, np.zeros((2, 8192))))[0] * place.scale for _ in range(2)]
    flood = 2.0**KNOWN.flood
    for found in sums:  # the sum of two uniform numbers: deviation √(2/3) of the flood
        assert np.abs(found).max() <= 2 * flood * 1.001
        assert abs(found.std() / (flood * np.sqrt(2 / 3)) - 1) < 0.05
    assert KNOWN.flood >= np.log2(N * error) + 32 + 40 - 1


def test_the_computers_half_is_flooded_before_it_leaves(keys):
    """What the controller gets, less what two equal sums have in common, is as large as the flood."""
    place, where = ring(KNOWN), session(10)
    frames = uploads(where, keys, np.zeros((2, 10)))

    def half():
        computer = Computer(where, keys.computer)
        for frame in frames:
            computer.receive(frame)
        return np.frombuffer(msgpack.unpackb(computer.close())[4][0], np.uint64).reshape(2, -1)

    a, b = half(), half()
    moduli = np.array(place.primes[:2], np.uint64)[:, None]
    difference = (a + moduli - b) % moduli
    zero = place.ciphertext(np.stack([difference, place.transformed(np.ones((2, 8192), np.uint64))]))
    plain = place.seal.Plaintext()
    nothing = place.load("SecretKey", place.secret(np.zeros((3, 8192), np.uint64)))
    place.seal.Decryptor(place.context, nothing).decrypt(zero, plain)
    assert np.abs(place.unpacked(plain) * place.scale).max() > 2.0**KNOWN.flood / 2


def test_parameters_have_128_bits_of_security_or_are_refused():
    s = ring(KNOWN).seal
    assert s.CoeffModulus.MaxBitCount(8192, s.SEC_LEVEL_TYPE.TC128) == 218 >= sum(KNOWN.primes)
    with pytest.raises(Refused, match="below 128 bits"):
        Parameters(4, primes=(60, 60, 60, 60))
    with pytest.raises(Refused, match="degree"):
        Parameters(4, degree=2048)
    with pytest.raises(Refused, match="would have a precision"):
        Parameters(4, primes=(60, 60))
    with pytest.raises(Refused, match="clients: a sum over 1"):
        Parameters(1)
    assert Parameters.from_json(KNOWN.to_json()) == KNOWN


def test_frames_that_are_not_what_they_should_be_are_refused_by_kind(keys):
    where, other = session(), session()
    frame = uploads(where, keys, numbers(1))[0]
    computer = Computer(where, keys.computer)
    for bad, kind in (
        (frame[: len(frame) // 2], Malformed),
        (frame + b"\0" * 2**20, Oversized),
        (uploads(other, keys, numbers(1))[0], Foreign),
        (b"", Malformed),
        ("text", Malformed),
        (encode(where, Upload(N, [b"", b""])), Malformed),
        (encode(where, Upload(0, [b"x"])), Malformed),
        (encode(where, Upload(0, [b"", b"junk"])), Malformed),
    ):
        with pytest.raises(kind):
            computer.receive(bad)
    computer.receive(frame)
    with pytest.raises(Replayed):
        computer.receive(frame)
    with pytest.raises(Aborted, match="1 of 4 uploads"):
        computer.close()
    computer.receive(uploads(where, keys, numbers(2))[1])
    opening = computer.close()
    with pytest.raises(Replayed):
        computer.close()
    with pytest.raises(Replayed):
        computer.receive(uploads(where, keys, numbers(3))[2])
    controller = Controller(where, keys.controller)
    with pytest.raises(Replayed, match="kind 'upload'"):
        controller.open(frame)
    raw = msgpack.unpackb(opening)
    with pytest.raises(Malformed, match="below their prime"):
        controller.open(msgpack.packb([*raw[:4], [b"\xff" * where.polynomial] * 2, *raw[5:]]))
    with pytest.raises(Malformed, match="fewer than two"):
        controller.open(msgpack.packb([*raw[:6], [1]]))
    assert len(controller.open(opening)) == LENGTH
    with pytest.raises(Replayed):
        controller.open(opening)


def test_ciphertexts_of_another_shape_are_refused(keys):
    place, where = ring(KNOWN), session(10)
    frame = msgpack.unpackb(Client(where, 0, keys.public).upload(np.ones(10)))
    good = place.load("Ciphertext", frame[5][0])
    from fedveil.transport.he.ring import dumped

    lower = place.seal.Ciphertext()
    good.scale = 2.0  # one prime has no room for the scale of uploads
    place.evaluator.mod_switch_to_next(good, lower)
    for bad in (dumped(lower), dumped(good)):
        with pytest.raises(Malformed, match="another level, size or scale"):
            Computer(where, keys.computer).receive(encode(where, Upload(0, [bad])))


def test_a_thousand_fuzzed_frames_crash_nothing(keys):
    where, rng = session(10), stream(9, "fuzz")
    frame = bytearray(Client(where, 0, keys.public).upload(np.ones(10)))
    computer = Computer(where, keys.computer)
    for _ in range(1000):
        bad = bytearray(frame)
        kind = rng.integers(3)
        if kind == 0:
            for place in rng.integers(0, 400 if rng.random() < 0.8 else len(bad), 3):
                bad[place] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            bad = bad[: int(rng.integers(len(bad)))]
        else:
            bad = bytearray(rng.bytes(int(rng.integers(300))))
        try:
            computer.receive(bytes(bad))
        except Rejected:
            continue
        computer = Computer(where, keys.computer)  # a flipped bit inside a residue is a ciphertext like any other


def test_numbers_out_of_reach_are_refused(keys):
    client = Client(session(2), 0, keys.public)
    for bad in (np.array([17.0, 0.0]), np.array([np.nan, 0.0]), np.array([np.inf, 0.0])):
        with pytest.raises(Refused, match="reach"):
            client.upload(bad)


def test_keys_are_written_for_each_party_and_their_owner_alone(tmp_path, keys):
    write(keys, tmp_path / "keys")
    files = {p.relative_to(tmp_path / "keys").as_posix() for p in (tmp_path / "keys").rglob("*") if p.is_file()}
    parts = {"clients/public.key", "controller/share.key", "computer/share.key"}
    assert files == parts | {f"{party}/parameters.json" for party in ("clients", "controller", "computer")}
    for path in (tmp_path / "keys", *(tmp_path / "keys").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert read(tmp_path / "keys") == keys
    with pytest.raises(Refused, match="not empty"):
        write(keys, tmp_path / "keys")
    with pytest.raises(Refused, match="keys new"):
        read(tmp_path / "nothing")
    (tmp_path / "keys" / "computer" / "share.key").write_bytes(keys.public)
    with pytest.raises(Refused, match="damaged"):
        read(tmp_path / "keys")
    (tmp_path / "keys" / "clients" / "parameters.json").write_text('{"clients": 4}')
    with pytest.raises(Refused, match="parameters"):
        read(tmp_path / "keys")


def context(rows, dim):
    streams = [stream(0, k) for k in range(rows)]
    return Context(1, Layout(("w",), ((dim,),)), list(range(rows)), streams, chance=stream(0, "chance"))


def test_weighted_means_and_losses():
    rows = torch.from_numpy(numbers(5, 300))
    weights = torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15], dtype=torch.float64)
    out = Encrypted().carry({"move": Signal(rows), "control": Signal(rows * 2)}, weights, context(5, 300))
    assert out.arrived is None and out.weight == pytest.approx(1, abs=1e-6)
    assert torch.allclose(out.uploads["move"], (weights @ rows)[None], atol=1e-6)
    assert torch.allclose(out.uploads["control"], 2 * (weights @ rows)[None], atol=1e-6)
    out = Encrypted(dropout=0.4).carry({"move": Signal(rows)}, weights, context(5, 300))
    assert len(out.arrived) == 3
    assert out.weight == pytest.approx(float(weights[out.arrived].sum()), abs=1e-6)
    assert torch.allclose(out.uploads["move"], (weights[out.arrived] @ rows[out.arrived])[None], atol=1e-6)
    with pytest.raises(Aborted, match="uploads arrived"):
        Encrypted(dropout=0.8).carry({"move": Signal(rows)}, weights, context(5, 300))
    with pytest.raises(Refused, match="hides nothing"):
        Encrypted(least=1)


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_run_equals_the_plain_one(tmp_path, method):
    def run(transport):
        result = fedveil.run(
            f"transport={transport}", method=method, data=blobs(), model="logistic", rounds=4, cohort=4, dtype="float64",
            out=tmp_path / transport,
        )  # fmt: skip
        return result, torch.cat([p.flatten() for p in result.objective.module.parameters()]).detach()

    (plain, w), (hidden, v) = run("plain"), run("he")
    assert (w - v).abs().max() < 1e-6
    assert hidden.accuracy == plain.accuracy
    assert hidden.history[-1]["he"]["arrived"] == 4
    assert any("two servers open sums together" in note for note in hidden.statement.notes)
    assert {r.status for r in hidden.statement.rows} == {"none"}


def test_keys_for_fewer_clients_are_refused(tmp_path, keys):
    write(keys, tmp_path / "keys")
    settings = {"method": "fedavg", "model": "logistic", "rounds": 1}
    run = fedveil.run(
        "transport=he", f"transport.keys={tmp_path / 'keys'}", data=blobs(4), cohort=4, out=tmp_path / "a", **settings
    )
    assert run.summary["rounds"] == 1
    with pytest.raises(Refused, match="sums of 4 clients, and 6 take part"):
        fedveil.run(
            "transport=he", f"transport.keys={tmp_path / 'keys'}", data=blobs(6), cohort=6, out=tmp_path / "b", **settings
        )  # fmt: skip


def test_a_reach_beside_keys_that_have_their_own_is_refused(tmp_path):
    """Even the same number: nobody should believe that it is this one that counts."""
    for reach in (4.0, 16.0):
        with pytest.raises(Refused, match="transport.reach: the keys of transport.keys were dealt for a reach"):
            Encrypted(keys=str(tmp_path), reach=reach)
    assert Encrypted(reach=4.0)._keys(4).parameters.reach == 4.0
    assert Encrypted()._keys(4).parameters.reach == 16.0


@pytest.mark.parametrize("memory", [True, False])
def test_secrets_pass_through_memory_or_a_file_of_our_own_that_is_gone_afterwards(monkeypatch, tmp_path, memory):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("this system has no files in memory")
    with scratch(b"secret") as (path, number):
        assert stat.S_IMODE(os.fstat(number).st_mode) & 0o077 == 0 or memory
        assert bool(list(tmp_path.iterdir())) != memory
        assert Path(path).read_bytes() == b"secret"
    assert list(tmp_path.iterdir()) == [] and not os.path.exists(path)
    keys = deal(KNOWN)
    where, rows = session(3), numbers(length=3)
    total, _ = opened(where, keys, uploads(where, keys, rows))
    assert np.allclose(total, rows.sum(axis=0), atol=1e-5)
    assert list(tmp_path.iterdir()) == []


def test_noise_that_clients_share_out_needs_masks(tmp_path):
    with pytest.raises(Refused, match="set transport=masks"):
        fedveil.run(
            "transport=he", method="ddp_fedavg", sigma=1.0, data=blobs(), model="logistic", cohort=4, out=tmp_path / "r"
        )


def test_replacing_a_parameter_gives_other_keys():
    assert ring(KNOWN) is ring(Parameters(N)) is not ring(replace(KNOWN, reach=8.0))
