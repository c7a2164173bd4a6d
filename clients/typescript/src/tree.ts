/** The hash tree over a roster, and its proofs (PROTOCOL §4.1). */

import type { Bytes } from './bytes.js';
import { refuse } from './errors.js';

/** Hashes two tops into the one above them. */
export type HashNode = (left: Bytes, right: Bytes) => Bytes;

function split(size: number): number {
  let power = 1;
  while (power * 2 < size) power *= 2;
  return power;
}

/** The top over one leaf or more. */
export function treeTop(leaves: readonly Bytes[], node: HashNode): Bytes {
  if (leaves.length === 1) return leaves[0]!;
  const left = split(leaves.length);
  return node(treeTop(leaves.slice(0, left), node), treeTop(leaves.slice(left), node));
}

/** The hashes that a reader of the leaves `shown` cannot compute, from left to right. */
export function treeProof(
  leaves: readonly Bytes[],
  shown: readonly number[],
  node: HashNode,
): Bytes[] {
  if (shown.length === 0) return [treeTop(leaves, node)];
  if (leaves.length === 1) return [];
  const left = split(leaves.length);
  const inLeft = shown.filter((index) => index < left);
  const inRight = shown.filter((index) => index >= left).map((index) => index - left);
  return [
    ...treeProof(leaves.slice(0, left), inLeft, node),
    ...treeProof(leaves.slice(left), inRight, node),
  ];
}

/**
 * The top over `size` leaves of which some are known, and a proof for the others.
 *
 * Each hash of the proof is used once, in order, and all of them; else there is no top
 * (R4.1-1, BAD_PROOF).
 *
 * @param shown Leaves that are known by index; at least one, all below `size`.
 */
export function topFromProof(
  size: number,
  shown: ReadonlyMap<number, Bytes>,
  proof: readonly Bytes[],
  node: HashNode,
): Bytes {
  const indices = [...shown.keys()].sort((a, b) => a - b);
  let used = 0;
  const walk = (start: number, length: number, first: number, last: number): Bytes => {
    if (first === last) {
      const next = proof[used++];
      if (next === undefined) refuse('BAD_PROOF', 'R4.1-1', 'the proof lacks a hash');
      return next;
    }
    if (length === 1) return shown.get(start)!;
    const left = split(length);
    let middle = first;
    while (middle < last && indices[middle]! < start + left) middle++;
    const leftTop = walk(start, left, first, middle);
    return node(leftTop, walk(start + left, length - left, middle, last));
  };
  const top = walk(0, size, 0, indices.length);
  if (used !== proof.length) refuse('BAD_PROOF', 'R4.1-1', 'the proof has a hash too many');
  return top;
}
