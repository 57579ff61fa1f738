// Reads and changes single values of a YAML text. The text around them, including comments, is not changed.
import { type Document, isAlias, isCollection, isMap, isScalar, isSeq, type Pair, parseDocument, stringify, type YAMLMap } from "yaml";

export interface Value {
  /** As written in the text. */
  source: string;
  /** The text of a plain value, or the items of a list of plain values, one per line. */
  text: string | null;
  isList: boolean;
}

type Range = [number, number, number];

/** A config, parsed from its text; `null` if that is not valid YAML. */
export class Config {
  private constructor(
    readonly text: string,
    private readonly document: Document,
  ) {}

  static parse(text: string): Config | null {
    const document = parseDocument(text);
    const { contents } = document;
    const fits = contents === null || isMap(contents) || (isScalar(contents) && contents.value === null);
    return document.errors.length > 0 || !fits ? null : new Config(text, document);
  }

  private root(): YAMLMap | null {
    return isMap(this.document.contents) ? this.document.contents : null;
  }

  /** The pair at a path, and the maps that lead to it. */
  private find(path: string[]): { pair: Pair; maps: YAMLMap[] } | null {
    const maps: YAMLMap[] = [];
    let map = this.root();
    for (const [at, key] of path.entries()) {
      if (!map) return null;
      maps.push(map);
      const pair = map.items.find((item) => nameOf(item) === key);
      if (!pair) return null;
      if (at === path.length - 1) return { pair, maps };
      map = isMap(pair.value) ? pair.value : null;
    }
    return null;
  }

  /** The value at a path, if there is one. */
  get(path: string[]): Value | null {
    const value = this.find(path)?.pair.value;
    if (isScalar(value) && value.range) {
      const source = this.text.slice(value.range[0], value.range[1]);
      if (source === "") return null;
      return { source, text: typeof value.value === "string" ? value.value : source, isList: false };
    }
    if (!isCollection(value) && !isAlias(value)) return null;
    const range = value.range as Range;
    const source = this.text.slice(range[0], range[1]).trimEnd();
    const items = isSeq(value) && value.items.every((item) => isScalar(item)) ? value.items : null;
    const text = items?.map((item) => String((item as { value: unknown }).value)).join("\n") ?? null;
    return { source, text, isList: isSeq(value) };
  }

  /** The keys of a section in the text. */
  keys(path: string[]): string[] {
    const value = path.length === 0 ? this.root() : this.find(path)?.pair.value;
    return isMap(value) ? value.items.map((item) => nameOf(item) ?? "") : [];
  }

  /** The path of the element at an offset of the text. */
  pathAt(offset: number): string[] {
    const path: string[] = [];
    let map = this.root();
    while (map) {
      const pair = map.items.findLast((item) => (keyRange(item)?.[0] ?? Infinity) <= offset);
      const name = pair && nameOf(pair);
      if (!pair || name === null || name === undefined) break;
      path.push(name);
      map = isMap(pair.value) && (keyRange(pair)?.[1] ?? 0) < offset ? pair.value : null;
    }
    return path;
  }

  /**
   * The text with a new value at a path, given as one-line YAML or as the items of a list; `null` removes the
   * key. Returns `null` if that is not possible without changing more.
   */
  set(path: string[], value: string | string[] | null): string | null {
    let map = this.root();
    const maps: [YAMLMap, Pair][] = [];
    for (const [at, key] of path.entries()) {
      if (!map) return value === null ? this.text : this.append(path, value);
      if (map.anchor || map.tag) return null;
      const pair = map.items.find((item) => nameOf(item) === key);
      const rest = path.slice(at);
      if (!pair) return value === null ? this.text : this.insert(map, rest, value);
      maps.push([map, pair]);
      if (rest.length === 1) return value === null ? this.remove(maps) : this.replace(map, pair, value);
      const below = pair.value;
      if (isMap(below)) map = below;
      else if (below === null || (isScalar(below) && below.value === null)) {
        return value === null ? this.text : this.replace(map, pair, value, rest.slice(1));
      } else return null;
    }
    return null;
  }

  private append(path: string[], value: string | string[]): string {
    const { contents } = this.document;
    // `null`, or nothing but comments.
    const at = isScalar(contents) && contents.range && contents.range[0] !== contents.range[1] ? contents.range : null;
    const before = at ? this.text.slice(0, at[0]) + this.text.slice(at[1]) : this.text;
    return ended(before) + block(path, value, "");
  }

  private insert(map: YAMLMap, path: string[], value: string | string[]): string | null {
    const range = map.range as Range;
    if (map.flow) {
      const close = range[1] - 1;
      const before = this.text.slice(0, close).trimEnd();
      // A comment there would hide what is inserted after it.
      if (this.text.slice(range[0], close).includes("#")) return null;
      const comma = map.items.length > 0 && !before.endsWith(",") ? ", " : "";
      return before + comma + flow(path, value) + this.text.slice(close);
    }
    const [first, last] = [map.items[0], map.items.at(-1)];
    const begin = first && keyRange(first)?.[0];
    if (begin === undefined || !last) return null;
    const indent = this.indent(begin);
    if (indent === null) return null;
    const at = this.endOf(last);
    return ended(this.text.slice(0, at)) + block(path, value, indent) + this.text.slice(at);
  }

  private replace(map: YAMLMap, pair: Pair, value: string | string[], path: string[] = []): string | null {
    const key = keyRange(pair);
    const old = pair.value;
    if (!key || isAlias(old)) return null;
    const nodes = isScalar(old) || isCollection(old) ? old : null;
    if (nodes && (nodes.anchor || nodes.tag)) return null;
    const range = (nodes?.range ?? null) as Range | null;
    const indent = map.flow ? null : this.indent(key[0]);
    const isBlock = isCollection(old) && !old.flow;
    const isPlain = typeof value === "string" && path.length === 0;
    if (range && range[0] !== range[1] && !isBlock && (isPlain || map.flow || (isCollection(old) && path.length === 0))) {
      const text = isScalar(old) && (old.type === "BLOCK_LITERAL" || old.type === "BLOCK_FOLDED") ? null : this.text;
      if (text) return text.slice(0, range[0]) + inline(path, value) + text.slice(range[1]);
    }
    const colon = this.text.indexOf(":", key[1]);
    if (colon < 0) return null;
    if (map.flow) return `${this.text.slice(0, colon + 1)} ${inline(path, value)}${this.text.slice(Math.max(colon + 1, range?.[1] ?? 0))}`;
    if (indent === null) return null;
    const name = this.text.slice(key[0], key[1]);
    const end = this.endOf(pair);
    if (isPlain) return `${this.text.slice(0, key[0])}${name}: ${value}\n${this.text.slice(end)}`;
    // A comment after the colon in that line stays there.
    const line = this.text.indexOf("\n", colon);
    const behind = line < 0 ? "" : this.text.slice(colon + 1, line);
    const comment = /^\s*#/.test(behind) ? behind : "";
    const body =
      path.length > 0
        ? block(path, value, `${indent}  `)
        : items(value as string[], isSeq(old) && isBlock ? (this.indent((old.range as Range)[0]) ?? `${indent}  `) : `${indent}  `);
    return `${this.text.slice(0, colon + 1)}${comment}\n${body}${this.text.slice(end)}`;
  }

  private remove(maps: [YAMLMap, Pair][]): string | null {
    let [map, pair] = maps.at(-1)!;
    // A section without keys is removed.
    while (map.items.length === 1 && maps.length > 1) {
      maps.pop();
      [map, pair] = maps.at(-1)!;
    }
    const key = keyRange(pair);
    if (!key) return null;
    if (!map.flow) {
      const indent = this.indent(key[0]);
      if (indent === null) return null;
      return this.text.slice(0, key[0] - indent.length) + this.text.slice(this.endOf(pair));
    }
    const at = map.items.indexOf(pair);
    const next = map.items[at + 1];
    if (next) return this.text.slice(0, key[0]) + this.text.slice(keyRange(next)?.[0] ?? key[0]);
    const before = map.items[at - 1];
    const from = before ? this.valueEnd(before) : key[0];
    return this.text.slice(0, from) + this.text.slice(this.valueEnd(pair));
  }

  private valueEnd(pair: Pair): number {
    const range = (pair.value as { range?: Range } | null)?.range;
    return range?.[1] ?? keyRange(pair)?.[1] ?? this.text.length;
  }

  /** The offset of the line that follows a pair and its contents. */
  private endOf(pair: Pair): number {
    let end = this.valueEnd(pair);
    if (isCollection(pair.value) && !pair.value.flow) {
      const last = pair.value.items.at(-1);
      if (last && typeof last === "object" && "key" in last) return this.endOf(last as Pair);
      const range = (last as { range?: Range } | undefined)?.range;
      if (isCollection(last) && !last.flow && isMap(last) && last.items.length > 0) return this.endOf(last.items.at(-1)!);
      end = range?.[1] ?? end;
    }
    if (end > 0 && this.text[end - 1] === "\n") return end;
    const line = this.text.indexOf("\n", end);
    return line < 0 ? this.text.length : line + 1;
  }

  /** The text before a key in its line, if that is only whitespace. */
  private indent(at: number): string | null {
    const before = this.text.slice(this.text.lastIndexOf("\n", at - 1) + 1, at);
    return /^ *$/.test(before) ? before : null;
  }
}

function nameOf(pair: Pair): string | null {
  return isScalar(pair.key) ? String(pair.key.value) : null;
}

function keyRange(pair: Pair): Range | null {
  return isScalar(pair.key) ? ((pair.key.range as Range | undefined) ?? null) : null;
}

function ended(text: string): string {
  return text === "" || text.endsWith("\n") ? text : `${text}\n`;
}

function items(values: string[], indent: string): string {
  return values.map((value) => `${indent}- ${scalar(value)}\n`).join("");
}

/** Nested keys on separate lines, the last with the value. */
function block(path: string[], value: string | string[], indent: string): string {
  const [key, ...rest] = path;
  if (rest.length > 0) return `${indent}${key}:\n${block(rest, value, `${indent}  `)}`;
  if (typeof value === "string") return `${indent}${key}: ${value}\n`;
  return value.length === 0 ? `${indent}${key}: []\n` : `${indent}${key}:\n${items(value, `${indent}  `)}`;
}

function flow([key, ...rest]: string[], value: string | string[]): string {
  return `${key}: ${rest.length > 0 ? `{${flow(rest, value)}}` : inline([], value)}`;
}

function inline(path: string[], value: string | string[]): string {
  if (path.length > 0) return `{${flow(path, value)}}`;
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** A text as a YAML scalar on one line. */
export function scalar(text: string): string {
  if (/[\n\r]/.test(text)) return JSON.stringify(text);
  const written = stringify(text, { lineWidth: 0 }).trimEnd();
  // Inside `{}` and `[]` these characters end a plain scalar.
  return written.includes("\n") || (/^[^"']/.test(written) && /[,[\]{}]/.test(written)) ? JSON.stringify(text) : written;
}

/** Whether a text is a valid one-line YAML value. */
export function isValue(text: string): boolean {
  if (text.includes("\n") || text.trim() === "") return false;
  const document = parseDocument(`{a: ${text}}`);
  return document.errors.length === 0 && isMap(document.contents) && document.contents.items.length === 1 && !text.includes(" #");
}
