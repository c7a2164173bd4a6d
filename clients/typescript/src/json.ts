/**
 * Canonical JSON as PROTOCOL §3.5 has it: ASCII, sorted keys, no white space, and floats
 * as Python writes them. Integers and floats are told apart, which JSON.parse does not.
 */

/** A number that was written with a point or an exponent. */
export class Float {
  readonly value: number;

  /** @param value A finite double. */
  constructor(value: number) {
    this.value = value;
  }
}

/** A value of canonical JSON; whole numbers are bigints. */
export type Json = null | boolean | string | bigint | Float | Json[] | { [key: string]: Json };

/** Nesting that is read; blocks have three levels. */
const DEEPEST = 8;

/** Says whether a value is an object. */
export function isObject(value: Json | undefined): value is { [key: string]: Json } {
  return (
    typeof value === 'object' &&
    value !== null &&
    !Array.isArray(value) &&
    !(value instanceof Float)
  );
}

/** Writes a double as Python's `repr` does. */
export function formatFloat(value: number): string {
  if (!Number.isFinite(value)) throw new RangeError('not a finite number');
  const sign = value < 0 || Object.is(value, -0) ? '-' : '';
  const [mantissa, exponentText] = Math.abs(value).toExponential().split('e') as [string, string];
  const exponent = Number(exponentText);
  const digits = mantissa.replace('.', '');
  if (exponent < -4 || exponent >= 16) {
    const fraction = digits.length > 1 ? `.${digits.slice(1)}` : '';
    const size = String(Math.abs(exponent)).padStart(2, '0');
    return `${sign}${digits[0]}${fraction}e${exponent < 0 ? '-' : '+'}${size}`;
  }
  if (exponent < 0) return `${sign}0.${'0'.repeat(-exponent - 1)}${digits}`;
  const whole = digits.slice(0, exponent + 1).padEnd(exponent + 1, '0');
  return `${sign}${whole}.${digits.slice(exponent + 1) || '0'}`;
}

function formatString(value: string): string {
  let out = '"';
  for (let i = 0; i < value.length; i++) {
    const unit = value.charCodeAt(i);
    const short = { 8: '\\b', 9: '\\t', 10: '\\n', 12: '\\f', 13: '\\r', 34: '\\"', 92: '\\\\' }[
      unit
    ];
    if (short !== undefined) out += short;
    else if (unit >= 32 && unit < 127) out += value[i];
    else out += `\\u${unit.toString(16).padStart(4, '0')}`;
  }
  return `${out}"`;
}

/** Writes canonical JSON. */
export function writeJson(value: Json): string {
  if (value === null) return 'null';
  if (typeof value === 'boolean') return value ? 'true' : 'false';
  if (typeof value === 'bigint') return value.toString();
  if (typeof value === 'string') return formatString(value);
  if (value instanceof Float) return formatFloat(value.value);
  if (Array.isArray(value)) return `[${value.map(writeJson).join(',')}]`;
  const keys = Object.keys(value).sort();
  return `{${keys.map((key) => `${formatString(key)}:${writeJson(value[key]!)}`).join(',')}}`;
}

/**
 * Reads canonical JSON.
 *
 * @returns The value, or undefined where writing it again does not give the same text.
 */
export function readJson(text: string): Json | undefined {
  try {
    const parser = new Parser(text);
    const value = parser.value(0);
    return writeJson(value) === text ? value : undefined;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

class Parser {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  value(depth: number): Json {
    if (depth > DEEPEST) throw new SyntaxError('nested too deeply');
    const next = this.#text[this.#at];
    if (next === '{') return this.#object(depth);
    if (next === '[') return this.#list(depth);
    if (next === '"') return this.#string();
    for (const [word, value] of [
      ['null', null],
      ['true', true],
      ['false', false],
    ] as const) {
      if (this.#text.startsWith(word, this.#at)) {
        this.#at += word.length;
        return value;
      }
    }
    return this.#number();
  }

  #expect(character: string): void {
    if (this.#text[this.#at] !== character) throw new SyntaxError(`no ${character}`);
    this.#at++;
  }

  #skip(character: string): boolean {
    if (this.#text[this.#at] !== character) return false;
    this.#at++;
    return true;
  }

  #object(depth: number): Json {
    this.#expect('{');
    // Without a prototype, so that no key of a peer has a meaning of its own.
    const out = Object.create(null) as { [key: string]: Json };
    if (this.#skip('}')) return out;
    do {
      const key = this.#string();
      this.#expect(':');
      out[key] = this.value(depth + 1);
    } while (this.#skip(','));
    this.#expect('}');
    return out;
  }

  #list(depth: number): Json {
    this.#expect('[');
    const out: Json[] = [];
    if (this.#skip(']')) return out;
    do out.push(this.value(depth + 1));
    while (this.#skip(','));
    this.#expect(']');
    return out;
  }

  #string(): string {
    const match = /^"(?:[^"\\\u0000-\u001f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"/.exec(
      this.#text.slice(this.#at),
    );
    if (match === null) throw new SyntaxError('no text');
    this.#at += match[0].length;
    return JSON.parse(match[0]) as string;
  }

  #number(): Json {
    const match = /^-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/.exec(
      this.#text.slice(this.#at),
    );
    if (match === null) throw new SyntaxError('no value');
    this.#at += match[0].length;
    if (match[1] === undefined && match[2] === undefined) return BigInt(match[0]);
    const value = Number(match[0]);
    if (!Number.isFinite(value)) throw new SyntaxError('not a finite number');
    return new Float(value);
  }
}
