/** Exact fractions, which noise and its parameters are written in. */

/** A fraction in lowest terms with a denominator of at least 1. */
export interface Rational {
  readonly p: bigint;
  readonly q: bigint;
}

function gcd(a: bigint, b: bigint): bigint {
  let x = a < 0n ? -a : a;
  let y = b;
  while (y !== 0n) [x, y] = [y, x % y];
  return x;
}

/** The fraction p/q in lowest terms; q must not be 0. */
export function rational(p: bigint | number, q: bigint | number = 1n): Rational {
  let top = BigInt(p);
  let bottom = BigInt(q);
  if (bottom === 0n) throw new RangeError('a fraction over zero');
  if (bottom < 0n) [top, bottom] = [-top, -bottom];
  const divisor = gcd(top, bottom);
  return { p: top / divisor, q: bottom / divisor };
}

/** The exact value of a finite double. */
export function ofDouble(value: number): Rational {
  if (!Number.isFinite(value)) throw new RangeError('not a finite number');
  let shift = 0n;
  let rest = value;
  while (!Number.isInteger(rest)) {
    rest *= 2;
    shift++;
  }
  return rational(BigInt(rest), 1n << shift);
}

/** The number that a finite double is written as: 1/10 for 0.1. */
export function ofDecimal(value: number): Rational {
  if (!Number.isFinite(value)) throw new RangeError('not a finite number');
  const [digits, exponent = '0'] = String(value).split('e') as [string, string?];
  const [whole, part = ''] = digits.split('.') as [string, string?];
  const power = Number(exponent) - part.length;
  const scale = 10n ** BigInt(Math.abs(power));
  return power < 0 ? rational(BigInt(whole + part), scale) : rational(BigInt(whole + part) * scale);
}

/**
 * Reads "p/q" in lowest terms with at most `digits` digits on either side; undefined for
 * any other text.
 */
export function parseRational(text: string, digits = 4096): Rational | undefined {
  const parts = /^(-?[0-9]+)\/([1-9][0-9]*)$/.exec(text);
  if (parts === null || text.length > 2 * digits + 2) return undefined;
  if (parts[1]!.replace('-', '').length > digits || parts[2]!.length > digits) return undefined;
  const value = rational(BigInt(parts[1]!), BigInt(parts[2]!));
  return formatRational(value) === text ? value : undefined;
}

/** Writes "p/q". */
export function formatRational(value: Rational): string {
  return `${value.p}/${value.q}`;
}

/** a + b. */
export function add(a: Rational, b: Rational): Rational {
  return rational(a.p * b.q + b.p * a.q, a.q * b.q);
}

/** a − b. */
export function subtract(a: Rational, b: Rational): Rational {
  return rational(a.p * b.q - b.p * a.q, a.q * b.q);
}

/** a · b. */
export function multiply(a: Rational, b: Rational): Rational {
  return rational(a.p * b.p, a.q * b.q);
}

/** a / b; b must not be 0. */
export function divide(a: Rational, b: Rational): Rational {
  return rational(a.p * b.q, a.q * b.p);
}

/** Negative, zero or positive as a is below, equal to or above b. */
export function compareRational(a: Rational, b: Rational): number {
  const difference = a.p * b.q - b.p * a.q;
  return difference < 0n ? -1 : difference > 0n ? 1 : 0;
}

/** ⌊p/q⌋. */
export function floor(value: Rational): bigint {
  const quotient = value.p / value.q;
  return value.p % value.q < 0n ? quotient - 1n : quotient;
}

/** ⌈p/q⌉. */
export function ceil(value: Rational): bigint {
  return -floor({ p: -value.p, q: value.q });
}

/** The least multiple of 2^−bits that is not below the value. */
export function ceilTo(value: Rational, bits: number): Rational {
  const scale = 1n << BigInt(bits);
  return rational(ceil({ p: value.p * scale, q: value.q }), scale);
}

/** The nearest double, ties to even. */
export function toDouble(value: Rational): number {
  if (value.p < 0n) return -toDouble({ p: -value.p, q: value.q });
  return roundToDouble(value, false);
}

/** The least double that is not below a value of at least 0. */
export function toDoubleUp(value: Rational): number {
  return roundToDouble(value, true);
}

function roundToDouble({ p, q }: Rational, up: boolean): number {
  if (p === 0n) return 0;
  const size = (n: bigint): number => n.toString(2).length;
  // An exponent that leaves 53 bits of quotient, or fewer below the least normal double.
  let exponent = size(p) - size(q) - 53;
  if ((exponent >= 0 ? p / (q << BigInt(exponent)) : (p << BigInt(-exponent)) / q) >> 53n) {
    exponent++;
  }
  exponent = Math.max(exponent, -1074);
  const top = exponent >= 0 ? p : p << BigInt(-exponent);
  const bottom = exponent >= 0 ? q << BigInt(exponent) : q;
  let quotient = top / bottom;
  const rest = 2n * (top % bottom);
  if (up ? rest > 0n : rest > bottom || (rest === bottom && quotient % 2n === 1n)) quotient++;
  // Both steps are exact: the quotient has 53 bits, or the power is one of two doubles.
  return exponent < -1000
    ? Number(quotient) * 2 ** -1000 * 2 ** (exponent + 1000)
    : Number(quotient) * 2 ** exponent;
}
