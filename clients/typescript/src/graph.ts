/** The complete graph and the Harary ring: neighbours, holders, and their numbers (PROTOCOL §11). */

/** Neighbours of client `index`, ascending: all others for degree 0, else k/2 on either side. */
export function neighboursOf(size: number, degree: number, index: number): number[] {
  if (degree === 0) {
    return Array.from({ length: size }, (_, i) => i).filter((i) => i !== index);
  }
  const out = new Set<number>();
  for (let step = 1; step <= degree / 2; step++) {
    out.add((index + step) % size);
    out.add((index - step + size) % size);
  }
  out.delete(index);
  return [...out].sort((a, b) => a - b);
}

/** Holders of a dealer's shares, ascending: on the complete graph the dealer is one of them. */
export function holdersOf(size: number, degree: number, dealer: number): number[] {
  if (degree === 0) return Array.from({ length: size }, (_, i) => i);
  return neighboursOf(size, degree, dealer);
}

/** The abscissa at which a holder has its shares: its rank among the holders, plus 1 (§6.1). */
export function abscissaOf(size: number, degree: number, dealer: number, holder: number): number {
  if (degree === 0) return holder + 1;
  return holdersOf(size, degree, dealer).indexOf(holder) + 1;
}

const logFactorials: number[] = [0, 0];

function logFactorial(n: number): number {
  for (let i = logFactorials.length; i <= n; i++) {
    logFactorials.push(logFactorials[i - 1]! + Math.log2(i));
  }
  return logFactorials[n]!;
}

function logBinomial(n: number, k: number): number {
  if (k < 0 || k > n) return -Infinity;
  return logFactorial(n) - logFactorial(k) - logFactorial(n - k);
}

/** E1(n) of §11.2: some honest client has t corrupt holders with this probability at most. */
export function corruptHolders(
  size: number,
  degree: number,
  threshold: number,
  colluders: number,
): number {
  if (colluders < threshold) return 0;
  const all = logBinomial(size - 1, degree);
  let tail = 0;
  // Small terms first: the tail is summed, never taken from 1.
  for (let x = Math.min(colluders, degree); x >= threshold; x--) {
    const log = logBinomial(colluders, x) + logBinomial(size - 1 - colluders, degree - x) - all;
    tail += 2 ** log;
  }
  return (size - colluders) * tail;
}

/**
 * p_cut of §11.2: losses and colluders cut the ring of survivors with this probability at
 * most; 0 where no choice of colluders cuts it.
 *
 * @param survivors For each place of the ring, whether it is in U3.
 */
export function cutProbability(
  survivors: readonly boolean[],
  degree: number,
  colluders: number,
): number {
  const size = survivors.length;
  const half = degree / 2;
  const alive = survivors.filter(Boolean).length;
  const weights = new Array<number>(size).fill(0);
  for (let step = 0; step < half; step++) weights[0]! += survivors[step % size] ? 1 : 0;
  for (let i = 1; i < size; i++) {
    weights[i] =
      weights[i - 1]! - (survivors[i - 1] ? 1 : 0) + (survivors[(i + half - 1) % size] ? 1 : 0);
  }
  const guarded = survivors.map((_, i) => survivors[(i - 1 + size) % size]!);
  if (countPairs(weights, guarded, half, colluders).every((count) => count === 0)) return 0;
  const counts = countPairs(
    weights,
    weights.map(() => true),
    half,
    colluders,
  );
  let sum = 0;
  let chance = 1;
  counts.forEach((count, total) => {
    sum += count * (alive <= colluders ? 1 : chance);
    chance *= (colluders - total) / (alive - total);
  });
  return sum;
}

/** How many pairs of admitted windows hold L survivors together, for L = 0 … c. */
function countPairs(
  weights: readonly number[],
  admitted: readonly boolean[],
  half: number,
  colluders: number,
): number[] {
  const size = weights.length;
  const histogram = new Array<number>(half + 1).fill(0);
  weights.forEach((weight, i) => {
    if (admitted[i]) histogram[weight]!++;
  });
  const counts = new Array<number>(Math.min(colluders, 2 * half) + 1).fill(0);
  for (let a = 0; a <= half; a++) {
    for (let b = a; b <= half && a + b < counts.length; b++) {
      const pairs =
        a === b ? (histogram[a]! * (histogram[a]! - 1)) / 2 : histogram[a]! * histogram[b]!;
      counts[a + b]! += pairs;
    }
  }
  for (let step = 1; step <= half; step++) {
    for (let i = 0; i < size; i++) {
      const j = (i + step) % size;
      const total = weights[i]! + weights[j]!;
      if (admitted[i] && admitted[j] && total < counts.length) counts[total]!--;
    }
  }
  return counts;
}
