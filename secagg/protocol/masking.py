"""Masking an input, and removing the masks from a sum.

masked_u = x_u + self_u + sum over neighbours v of D(u, v) * mask(u, v)   (mod m)

with D = +1 for the lower index of a pair and -1 for the higher (PROTOCOL §6).  In a
sum over U3 the pairwise masks between survivors cancel.  The self masks of U3 and the
masks between U3 and U2 minus U3 remain; `removal_masks` lists them.

Key agreement takes tens of microseconds per pair, so call these functions outside an
event loop.

Source:
    [Bon17] section 4; signs as in PROTOCOL §6.2 ([Bon17] uses the opposite ones).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.crypto.key_agreement import KeyPair
from secagg.crypto.key_derivation import pair_mask_key, self_mask_key
from secagg.crypto.prg import Mask, add_masks
from secagg.protocol.events import ComputeSum, MaskJob

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
