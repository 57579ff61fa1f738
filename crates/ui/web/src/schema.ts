// The keys of a config, read from configs/schema.json for the form and the completion.

interface Node {
  $ref?: string;
  type?: string | string[];
  description?: string;
  default?: unknown;
  const?: unknown;
  enum?: unknown[];
  anyOf?: Node[];
  oneOf?: Node[];
  items?: Node;
  properties?: Record<string, Node>;
  additionalProperties?: boolean | Node;
  "x-aliases"?: string[];
}

export interface Schema extends Node {
  $defs?: Record<string, Node>;
}

export interface Choice {
  /** As written in YAML. */
  text: string;
  description: string;
}

/** The kind of a value: one of a few, a number, a text, a list with one item per line, or YAML. */
export type Kind = "choice" | "number" | "text" | "list" | "yaml";

export interface Field {
  key: string;
  path: string[];
  kind: Kind;
  choices: Choice[];
  description: string;
  /** What other trainers call it. */
  aliases: string[];
  /** The default as one-line YAML; empty if there is none. */
  fallback: string;
  /** The keys below it; empty for a plain value. */
  fields: Field[];
}

/** A text as a plain YAML scalar if possible. */
function plain(value: unknown): string {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return JSON.stringify(value);
  return /^[A-Za-z][\w.-]*$/.test(value) ? value : JSON.stringify(value);
}

/** Reads the keys of a schema. */
export function fieldsOf(schema: Schema): Field[] {
  const follow = (node: Node): Node => {
    if (node.$ref) {
      const named = schema.$defs?.[node.$ref.replace("#/$defs/", "")] ?? {};
      return { ...follow(named), ...without(node) };
    }
    const other = node.anyOf?.find((each) => each.type !== "null");
    return other ? { ...follow(other), ...without(node) } : node;
  };
  const read = (node: Node, path: string[]): Field[] =>
    Object.entries(node.properties ?? {}).map(([key, raw]) => {
      const found = follow(raw);
      const here = [...path, key];
      const types = [found.type ?? []].flat().filter((type) => type !== "null");
      const choices: Choice[] = [
        ...(found.oneOf ?? []).filter((each) => each.const !== undefined).map((each) => choice(each.const, each.description)),
        ...(found.enum ?? []).map((value) => choice(value)),
        ...(types.length === 1 && types[0] === "boolean" ? [choice(true), choice(false)] : []),
      ];
      const one = types.length === 1 ? types[0] : undefined;
      const fields = found.properties ? read(found, here) : [];
      let kind: Kind = "yaml";
      if (choices.length > 0) kind = "choice";
      else if (one === "integer" || one === "number") kind = "number";
      else if (one === "string") kind = "text";
      else if (one === "array" && follow(found.items ?? {}).type === "string") kind = "list";
      // The defaults of a section are those of its keys.
      const fallback = fields.length > 0 ? "" : plain(found.default);
      return { key, path: here, kind, choices, description: found.description ?? "", aliases: found["x-aliases"] ?? [], fallback, fields };
    });
  return read(follow(schema), []);
}

function choice(value: unknown, description = ""): Choice {
  return { text: plain(value), description };
}

function without(node: Node): Node {
  const { $ref: _reference, anyOf: _any, ...rest } = node;
  return rest;
}

/** The field at a path, or its nearest ancestor. */
export function fieldAt(fields: Field[], path: string[]): Field | null {
  let [found, below]: [Field | null, Field[]] = [null, fields];
  for (const key of path) {
    const next = below.find((field) => field.key === key);
    if (!next) return found;
    [found, below] = [next, next.fields];
  }
  return found;
}
