"""Vectors on their way to the server: their masks, and their packing into bytes.

Packed vectors over Z_m have b = ⌈log2 m⌉ bits for each entry, without padding between.

Rule 1: a vector of d entries takes exactly ⌈d·b/8⌉ bytes.
Rule 2: the layout, for a second implementer.  Let w be the bits of the word of the
        modulus (16, 32 or 64) and d the dimension.  Entries are cut, in order, into
        *blocks* of 2^17.  The remaining r < 2^17 entries are cut into one short block
        of w·⌊r/w⌋ entries and a *tail* of r mod w entries.

Block: its entries are a matrix of w rows and R columns, row by row. Entry i stands in
row ⌊i/R⌋ and column i mod R (R = 2^17/w, or ⌊r/w⌋ in the short block).  Column c is a
bit string: the b low bits of row 0, then those of row 1, and so on, least significant
bit first.  It is cut into b words of w bits, the first bit being the least significant
of word 0.  The block is the matrix of these words, b rows and R columns, row by row,
every word little-endian.

Tail: its entries one after the other, b bits each, least significant bit first, filled
into bytes from the least significant bit.  The unused bits of the last byte are zero.

Rule 3: a full block takes 2^14·b bytes, at most 1 MiB, and depends on no other.  An
        upload is cut into chunks of whole blocks, which are unpacked one by one.
Rule 4: unpacking is total.  It returns entries below m or raises `BadVectorError`.

Rows, not columns, are contiguous, so that every step is one shift over a long row.
Other modules send and hash.

Source: PROTOCOL §8; the time per entry is measured by benchmarks/bench_packing.py.

An input is masked before, and its sum is cleared of the masks:

masked_u = x_u + self_u + sum over neighbours v of D(u, v) * mask(u, v)   (mod m)

with D = +1 for the lower index of a pair and -1 for the higher (PROTOCOL §6).  In a
sum over U3 the pairwise masks between survivors cancel.  The self masks of U3 and the
masks between U3 and U2 minus U3 remain; `removal_masks` lists them.

Key agreement takes tens of microseconds per pair, so call these functions outside an
event loop.

Source:
    [Bon17] section 4; signs as in PROTOCOL §6.2 ([Bon17] uses the opposite ones).
"""

import io
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from secagg.crypto.key_agreement import KeyPair
from secagg.crypto.key_derivation import pair_mask_key, self_mask_key
from secagg.crypto.modular import (
    BadVectorError,
    UnsignedArray,
    bit_width,
    is_power_of_two,
    word_dtype,
)
from secagg.crypto.prg import Mask, add_masks
from secagg.protocol.events import ComputeSum, MaskJob

# One chunk of an upload or of a fetched object.  Smaller chunks pay more for calls
# than for bytes; larger ones lose more when a link breaks.
MAX_CHUNK_BYTES: Final = 1 << 20

BLOCK_VALUES: Final = 1 << 17
_MAX_BITS: Final = 62

# Entries shifted together.  Longer rows take fewer calls, which saves more time than
# the larger cache footprint costs.
_VALUES_PER_PASS: Final = 1 << 20


class Chunk(NamedTuple):
    """A part of a packed vector that unpacks by itself."""

    start: int
    """Coordinate of its first entry."""
    values: int
    """Number of its entries."""
    offset: int
    """Position of its first byte."""
    nbytes: int
    """Number of its bytes."""


def packed_size(dim: int, bits: int) -> int:
    """Return the bytes of a packed vector: ⌈dim·bits/8⌉.

    Args:
        dim: Number of entries, not negative.
        bits: Bits per entry, in [1, 62].

    Raises:
        ValueError: An argument lies outside its range.
    """
    _check_bits(bits)
    if dim < 0:
        raise ValueError("expected a dimension that is not negative")
    return -(-dim * bits // 8)


def chunk_values(bits: int) -> int:
    """Return how many entries a full chunk holds: as many blocks as fit into 1 MiB."""
    return BLOCK_VALUES * (MAX_CHUNK_BYTES // packed_size(BLOCK_VALUES, bits))


def chunks(dim: int, bits: int) -> Iterator[Chunk]:
    """Cut a packed vector into chunks of at most 1 MiB.

    Args:
        dim: Number of entries of the vector.
        bits: Bits per entry, in [1, 62].

    Yields:
        The chunks in order; `unpack` takes each with its own number of values.

    Raises:
        ValueError: An argument lies outside its range.
    """
    step = chunk_values(bits)
    for start in range(0, dim, step):
        count = min(step, dim - start)
        yield Chunk(start, count, packed_size(start, bits), packed_size(count, bits))


def pack(vector: UnsignedArray, bits: int) -> bytes:
    """Pack a vector.

    Args:
        vector: Shape (d,), entries below 2^bits, in the word of moduli of that many
            bits: uint16 up to 16, uint32 up to 32, uint64 beyond.
        bits: Bits per entry, in [1, 62].

    Returns:
        `packed_size(d, bits)` bytes.

    Raises:
        ValueError: An argument lies outside its range.
    """
    _check_bits(bits)
    word = word_dtype(1 << bits)
    if vector.ndim != 1 or vector.dtype != word:
        raise ValueError(f"expected a vector of words of type {word}")
    if vector.size and int(vector.max()) >> bits:
        raise ValueError(f"an entry has more than {bits} bits")
    values = np.ascontiguousarray(vector, word.newbyteorder("<"))
    # The bytes object is written in place: it has no other owner before the end, so
    # that neither getbuffer() nor getvalue() makes a copy of it.
    buffer = io.BytesIO(bytes(packed_size(vector.size, bits)))
    with buffer.getbuffer() as packed:
        _pack_into(packed, values, bits)
    return buffer.getvalue()


def unpack(
    data: bytes | bytearray | memoryview, count: int, bits: int, modulus: int
) -> UnsignedArray:
    """Unpack a vector, or one chunk of it, and check every entry.

    Args:
        data: Packed bytes, from a peer that may lie.
        count: Number of entries; the caller's own figure, never the peer's.
        bits: Bits per entry: ⌈log2 modulus⌉.
        modulus: m, in [2, 2^62].

    Returns:
        Entries in [0, m) in the word of the modulus, shape (count,).

    Raises:
        BadVectorError: Wrong length, padding that is not zero, or an entry that is not
            below m; refuse the vector.
        ValueError: The bits do not belong to the modulus.
    """
    if bits != bit_width(modulus):
        raise ValueError(f"modulus {modulus} takes {bit_width(modulus)} bits per entry")
    size = packed_size(count, bits)
    if len(data) != size:
        raise BadVectorError(
            f"{count} entries of {bits} bits take {size} bytes, not {len(data)}"
        )
    word = word_dtype(modulus)
    little = word.newbyteorder("<")
    raw = np.frombuffer(data, np.uint8)
    values = np.empty(count, little)
    for start, blocks, rows, columns in _matrices(count, word):
        entries = blocks * rows * columns
        first = packed_size(start, bits)
        source = raw[first : first + packed_size(entries, bits)].view(little)
        target = values[start : start + entries].reshape(blocks, rows, columns)
        _unpack_blocks(source.reshape(blocks, bits, columns), target, bits)
    tail = count % (8 * word.itemsize)
    if tail:
        flags = np.unpackbits(raw[-packed_size(tail, bits) :], bitorder="little")
        if flags[tail * bits :].any():  # R8-1
            raise BadVectorError("the padding behind the last entry is not zero")
        values[-tail:] = _values_of(flags[: tail * bits], bits)
    if not is_power_of_two(modulus) and count and int(values.max()) >= modulus:
        raise BadVectorError(f"an entry is not below the modulus {modulus}")
    return values.astype(word, copy=False)


def _check_bits(bits: int) -> None:
    if not 1 <= bits <= _MAX_BITS:
        raise ValueError(f"expected 1 to {_MAX_BITS} bits per entry, not {bits}")


def _matrices(count: int, word: np.dtype[Any]) -> Iterator[tuple[int, int, int, int]]:
    """Yield (first entry, blocks, rows, columns) of blocks to shift together."""
    rows = 8 * word.itemsize
    full, rest = divmod(count, BLOCK_VALUES)
    step = _VALUES_PER_PASS // BLOCK_VALUES
    for low in range(0, full, step):
        blocks = min(step, full - low)
        yield low * BLOCK_VALUES, blocks, rows, BLOCK_VALUES // rows
    if rest >= rows:
        yield full * BLOCK_VALUES, 1, rows, rest // rows


def _pack_into(packed: memoryview, values: UnsignedArray, bits: int) -> None:
    """Write the packed form of little-endian words over zeros."""
    out = np.frombuffer(packed, np.uint8)
    for start, blocks, rows, columns in _matrices(values.size, values.dtype):
        count = blocks * rows * columns
        first = packed_size(start, bits)
        source = values[start : start + count].reshape(blocks, rows, columns)
        target = out[first : first + packed_size(count, bits)].view(values.dtype)
        _pack_blocks(source, target.reshape(blocks, bits, columns), bits)
    tail = values.size % (8 * values.itemsize)
    if tail:
        last = np.packbits(_bits_of(values[-tail:], bits), bitorder="little")
        out[-last.size :] = last


def _pack_blocks(source: UnsignedArray, target: UnsignedArray, bits: int) -> None:
    """Shift rows of entries (blocks, w, R) into rows of words (blocks, b, R)."""
    width = source.shape[1]
    shifted = np.empty_like(source[:, 0])
    for row in range(width):
        entry = source[:, row]
        index, shift = divmod(row * bits, width)
        words = target[:, index]
        if shift == 0:
            words[:] = entry
        else:
            np.left_shift(entry, shift, out=shifted)
            np.bitwise_or(words, shifted, out=words)
        if shift + bits > width:
            np.right_shift(entry, width - shift, out=target[:, index + 1])


def _unpack_blocks(source: UnsignedArray, target: UnsignedArray, bits: int) -> None:
    """Shift rows of words (blocks, b, R) back into rows of entries (blocks, w, R)."""
    width = target.shape[1]
    mask = target.dtype.type((1 << bits) - 1)
    shifted = np.empty_like(target[:, 0])
    for row in range(width):
        entry = target[:, row]
        index, shift = divmod(row * bits, width)
        np.right_shift(source[:, index], shift, out=entry)
        if shift + bits > width:
            np.left_shift(source[:, index + 1], width - shift, out=shifted)
            np.bitwise_or(entry, shifted, out=entry)
        if shift + bits != width:  # otherwise no bits stand above the entry
            np.bitwise_and(entry, mask, out=entry)


def _bits_of(values: UnsignedArray, bits: int) -> npt.NDArray[np.uint8]:
    """Spread a few entries into their bits, least significant first."""
    places = np.arange(bits, dtype=np.uint64)
    spread = (values.astype(np.uint64)[:, None] >> places) & np.uint64(1)
    return spread.astype(np.uint8).reshape(-1)


def _values_of(flags: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint64]:
    """Join bits, least significant first, into entries."""
    places = np.arange(bits, dtype=np.uint64)
    spread = flags.reshape(-1, bits).astype(np.uint64) << places
    joined: npt.NDArray[np.uint64] = np.bitwise_or.reduce(spread, axis=1)
    return joined


Residues = npt.NDArray[np.unsignedinteger[Any]]


def input_masks(job: MaskJob) -> list[Mask]:
    """List the masks of one client: its self mask and one per neighbour in U2."""
    key, iv = self_mask_key(
        job.self_mask_seed,
        session_id=job.session_id,
        context=job.mask_context,
        client=job.index,
        suite=job.suite,
    )
    masks = [Mask(key, iv, +1)]
    pair = KeyPair.from_private_bytes(job.mask_private_key)
    masks += [
        _pair_mask(job, pair, own=job.index, peer=peer, peer_key=peer_key)
        for peer, peer_key in job.peers
    ]
    return masks


def mask_input(residues: Residues, job: MaskJob) -> Residues:
    """Return the masked input.

    Args:
        residues: The input, words of the modulus, shape (d,), entries in [0, m).
        job: Keys and neighbours, as the state machine put them out.

    Returns:
        A new array of the same shape and dtype, entries in [0, m).
    """
    masked = residues.copy()
    add_masks(masked, input_masks(job), job.modulus)
    return masked


def removal_masks(job: ComputeSum) -> list[Mask]:
    """List the masks that turn the sum of all uploads into the sum of all inputs.

    Args:
        job: Reconstructed secrets, as the state machine put them out.

    Returns:
        Masks with signs: the sum of uploads plus these is the clean sum.
    """
    masks = []
    for survivor in job.survivor_seeds:
        key, iv = self_mask_key(
            survivor.seed,
            session_id=job.session_id,
            context=job.mask_context,
            client=survivor.index,
            suite=job.suite,
        )
        masks.append(Mask(key, iv, -1))
    for lost in job.dropped_keys:
        pair = KeyPair.from_private_bytes(lost.private_key)
        # The mask of a dropped client has the opposite sign of its survivor's, and it
        # never arrived: adding it cancels the survivor's.
        masks += [
            _pair_mask(job, pair, own=lost.index, peer=peer, peer_key=peer_key)
            for peer, peer_key in lost.peers
        ]
    return masks


def _pair_mask(
    job: MaskJob | ComputeSum,
    pair: KeyPair,
    *,
    own: int,
    peer: int,
    peer_key: bytes,
) -> Mask:
    """Return the mask that two clients share, with its sign for this one."""
    key, iv = pair_mask_key(
        pair.agree(peer_key),
        session_id=job.session_id,
        context=job.mask_context,
        low=min(own, peer),
        high=max(own, peer),
        suite=job.suite,
    )
    return Mask(key, iv, +1 if own < peer else -1)
