// Completion for configs: keys and values of the schema. It works on lines, since an unfinished
// text is rarely valid YAML.
import { type Field, fieldAt } from "./schema";

export interface Offer {
  /** The text shown. */
  label: string;
  detail: string;
  /** The replacement for the text between `from` and the caret. */
  insert: string;
  from: number;
}

const KEY = /^( *)([\w]+):/;

/** The keys that lead to a line, by its indentation. */
function above(lines: string[], at: number, indent: number): string[] {
  const path: string[] = [];
  let least = indent;
  for (let line = at - 1; line >= 0 && least > 0; line -= 1) {
    const key = KEY.exec(lines[line]!);
    if (key && key[1]!.length < least) {
      path.unshift(key[2]!);
      least = key[1]!.length;
    }
  }
  return path;
}

/** The sibling keys of a line: those with its indentation in its section. */
function beside(lines: string[], at: number, indent: number): Set<string> {
  const found = new Set<string>();
  for (const step of [-1, 1]) {
    for (let line = at + step; line >= 0 && line < lines.length; line += step) {
      const key = KEY.exec(lines[line]!);
      if (!key) continue;
      if (key[1]!.length < indent) break;
      if (key[1]!.length === indent) found.add(key[2]!);
    }
  }
  return found;
}

function section(fields: Field[], path: string[]): Field[] {
  if (path.length === 0) return fields;
  const field = fieldAt(fields, path);
  return field?.path.length === path.length ? field.fields : [];
}

function ofKeys(fields: Field[], taken: Set<string>, word: string, caret: number, insert: (field: Field) => string): Offer[] {
  return fields
    .filter((field) => field.key.startsWith(word) && !taken.has(field.key))
    .map((field) => ({
      label: field.key,
      detail: (field.description.split("\n")[0] ?? "") + (field.fallback ? ` (${field.fallback})` : ""),
      insert: insert(field),
      from: caret - word.length,
    }));
}

function ofValues(field: Field | null, path: string[], word: string, caret: number): Offer[] {
  if (field?.path.length !== path.length) return [];
  return field.choices
    .filter((choice) => choice.text.startsWith(word))
    .map((choice) => ({ label: choice.text, detail: choice.description, insert: choice.text, from: caret - word.length }));
}

/** The completions at the caret, in the order of the schema. */
export function offers(fields: Field[], text: string, caret: number): Offer[] {
  const lines = text.split("\n");
  const at = text.slice(0, caret).split("\n").length - 1;
  const before = text.slice(text.lastIndexOf("\n", caret - 1) + 1, caret);
  const behind = lines[at]!.slice(before.length);
  if (before.includes("#") || /^\w/.test(behind)) return [];
  const key = /^( *)(\w*)$/.exec(before);
  if (key) {
    const [indent, word] = [key[1]!.length, key[2]!];
    const path = above(lines, at, indent);
    const insert = (field: Field) => {
      if (behind.startsWith(":")) return field.key;
      return field.fields.length > 0 ? `${field.key}:\n${" ".repeat(indent + 2)}` : `${field.key}: `;
    };
    return ofKeys(section(fields, path), beside(lines, at, indent), word, caret, insert);
  }
  const value = /^( *)(\w+): +([\w".-]*)$/.exec(before);
  if (value) {
    const path = [...above(lines, at, value[1]!.length), value[2]!];
    return ofValues(fieldAt(fields, path), path, value[3]!, caret);
  }
  // `section: {key: value, …`
  const braces = /^( *)(\w+): *\{((?:[^{}]*,)?) *(?:(\w+): +)?([\w".-]*)$/.exec(before);
  if (braces) {
    const path = [...above(lines, at, braces[1]!.length), braces[2]!];
    if (braces[4]) return ofValues(fieldAt(fields, [...path, braces[4]]), [...path, braces[4]], braces[5]!, caret);
    const taken = new Set([...braces[3]!.matchAll(/(\w+):/g)].map((match) => match[1]!));
    return ofKeys(section(fields, path), taken, braces[5]!, caret, (field) => `${field.key}: `);
  }
  return [];
}
