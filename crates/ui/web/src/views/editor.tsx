// A config as text and as a form: two views of one config that are kept in sync.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";
import { type ConfigProblem, read } from "../api";
import { type Offer, offers } from "../complete";
import { type Field, fieldsOf, type Schema } from "../schema";
import { Section } from "../widgets";
import { Config, isValue, scalar } from "../yaml";

/** The number of suggestions shown at once. */
const SHOWN = 12;

let known: Promise<Field[]> | null = null;

export function useFields(): Field[] {
  const [fields, setFields] = useState<Field[]>([]);
  useEffect(() => {
    known ??= read<Schema>("/api/schema").then(fieldsOf);
    known.then(setFields, () => (known = null));
  }, []);
  return fields;
}

/** The offset of a line and a column (in characters) in a text. */
export function position(text: string, line: number, column: number): number {
  const lines = text.split("\n");
  const before = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
  return before + [...(lines[line - 1] ?? "")].slice(0, column - 1).join("").length;
}

/** What is wrong, by the name of the key where it stands. */
export function problemsByKey(text: string, config: Config | null, problems: ConfigProblem[]): Map<string, string> {
  const found = new Map<string, string>();
  for (const problem of problems) {
    if (!config || problem.source !== "config") continue;
    const path = config.pathAt(position(text, problem.line, problem.column)).join(".");
    found.set(path, [found.get(path), problem.message].filter(Boolean).join("; "));
  }
  return found;
}

interface Shared {
  text: string;
  onText: (text: string) => void;
  problems: ConfigProblem[];
}

export function Editor(props: Shared & { place: { line: number; column: number } | null }) {
  const fields = useFields();
  return (
    <div class="editor">
      <Section title="Config">
        <TextBox {...props} fields={fields} />
      </Section>
      <Form {...props} fields={fields} />
    </div>
  );
}

function TextBox({ text, onText, problems, place, fields }: Shared & { place: { line: number; column: number } | null; fields: Field[] }) {
  const box = useRef<HTMLTextAreaElement>(null);
  const id = useId();
  const [open, setOpen] = useState<{ list: Offer[]; chosen: number; line: number; column: number; scroll: number } | null>(null);
  useEffect(() => {
    if (!place || !box.current) return;
    const at = position(box.current.value, place.line, place.column);
    box.current.focus();
    box.current.setSelectionRange(at, at);
  }, [place]);

  const offer = (asked: boolean) => {
    const area = box.current;
    if (!area || area.selectionStart !== area.selectionEnd) return setOpen(null);
    const caret = area.selectionStart;
    const list = offers(fields, area.value, caret);
    const [first] = list;
    const typed = first ? caret - first.from : 0;
    // No suggestions if the only one is already typed, nor a list of everything unless it was requested.
    const isWhole = list.length === 1 && area.value.slice(first!.from, caret) === first!.label;
    if (list.length === 0 || (!asked && (typed === 0 || isWhole))) return setOpen(null);
    const before = area.value.slice(0, first!.from).split("\n");
    setOpen({ list, chosen: 0, line: before.length, column: before.at(-1)!.length, scroll: area.scrollTop });
  };
  // The keys may come after the first letters.
  useEffect(() => {
    if (document.activeElement === box.current) offer(false);
  }, [fields]);
  const take = (taken: Offer) => {
    const area = box.current;
    if (!area) return;
    area.focus();
    area.setSelectionRange(taken.from, area.selectionStart);
    // Text inserted this way can be undone like typed text.
    if (!document.execCommand("insertText", false, taken.insert))
      area.setRangeText(taken.insert, area.selectionStart, area.selectionEnd, "end");
    onText(area.value);
    setOpen(null);
    if (/: $/.test(taken.insert)) offer(true);
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      offer(true);
      return;
    }
    if (!open) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      setOpen({ ...open, chosen: (open.chosen + step + open.list.length) % open.list.length });
    } else if ((event.key === "Enter" || event.key === "Tab") && !event.shiftKey) {
      event.preventDefault();
      take(open.list[open.chosen]!);
    } else if (event.key === "Escape") {
      event.preventDefault();
      setOpen(null);
    } else if (/^(Arrow|Home|End|Page)/.test(event.key)) setOpen(null);
  };
  const from = open ? Math.max(0, Math.min(open.chosen - SHOWN + 1, open.list.length - SHOWN)) : 0;
  return (
    <div class="code">
      <textarea
        ref={box}
        rows={24}
        wrap="off"
        aria-label="Config"
        aria-invalid={problems.length > 0}
        aria-describedby={`problems ${id}-help`}
        aria-autocomplete="list"
        aria-haspopup="listbox"
        aria-controls={open ? `${id}-offers` : undefined}
        aria-activedescendant={open ? `${id}-${open.chosen}` : undefined}
        spellcheck={false}
        autocapitalize="off"
        value={text}
        onInput={(event) => {
          onText(event.currentTarget.value);
          offer(false);
        }}
        onKeyDown={onKey}
        onBlur={() => setOpen(null)}
        onScroll={() => open && setOpen(null)}
      />
      {open && (
        <ul
          id={`${id}-offers`}
          class="offers"
          role="listbox"
          aria-label="Suggestions"
          ref={(list) => {
            if (!list) return;
            list.style.top = `calc(${open.line} * 1.5em + 9px - ${open.scroll}px)`;
            list.style.left = `calc(min(${open.column} * 1ch + 12px, 100% - 18em))`;
          }}
        >
          {open.list.slice(from, from + SHOWN).map((each, index) => (
            <li
              key={each.label}
              id={`${id}-${from + index}`}
              role="option"
              aria-selected={from + index === open.chosen}
              onMouseDown={(event) => {
                event.preventDefault();
                take(each);
              }}
            >
              <b>{each.label}</b> <span>{each.detail}</span>
            </li>
          ))}
        </ul>
      )}
      <p id={`${id}-help`} class="note">
        <kbd>Ctrl</kbd>+<kbd>Space</kbd> shows suggestions.
      </p>
      <span class="hidden" role="status">
        {open ? `${open.list.length} suggestions` : ""}
      </span>
    </div>
  );
}

function Form({ text, onText, problems, fields }: Shared & { fields: Field[] }) {
  const [wanted, setWanted] = useState("");
  const [onlySet, setOnlySet] = useState(false);
  const [refused, setRefused] = useState<string | null>(null);
  const config = useMemo(() => Config.parse(text), [text]);
  const wrong = useMemo(() => problemsByKey(text, config, problems), [problems, config, text]);
  const set = (field: Field, value: string | string[] | null) => {
    const changed = config?.set(field.path, value) ?? null;
    const name = field.path.join(".");
    setRefused(changed === null ? `The form cannot change \`${name}\` as it is written: change it in the text.` : null);
    if (changed !== null) onText(changed);
  };
  const isShown = (field: Field): boolean => {
    if (field.fields.length > 0) return field.fields.some(isShown);
    const fits = isMeant(field, wanted);
    return fits && (!onlySet || config?.get(field.path) != null);
  };
  const isOpen = wanted.trim() !== "" || onlySet;
  const part = (list: Field[]) => (
    <div class="form-fields">
      {list.filter(isShown).map((field) =>
        field.fields.length > 0 ? (
          <details key={field.key} open={isOpen || wrong.has(field.path.join("."))} class="form-part">
            <summary>
              {field.path.join(".")} <span class="note">{config && countOf(config, field)}</span>
            </summary>
            {field.description && <p class="note">{field.description}</p>}
            {part(field.fields)}
          </details>
        ) : (
          <Entry
            key={field.key}
            field={field}
            config={config}
            problem={wrong.get(field.path.join(".")) ?? null}
            onValue={(value) => set(field, value)}
          />
        ),
      )}
    </div>
  );
  return (
    <section aria-label="Form" class="form">
      <div class="head">
        <h2>Form</h2>
        <div class="tools">
          <input
            type="search"
            aria-label="Find a key"
            placeholder="find a key"
            value={wanted}
            onInput={(event) => setWanted(event.currentTarget.value)}
          />
          <label>
            <input type="checkbox" checked={onlySet} onChange={() => setOnlySet(!onlySet)} /> only keys that are set
          </label>
        </div>
      </div>
      {config === null && <p class="note">The text is not valid YAML at the moment: the form is updated again once it is.</p>}
      {refused && (
        <p class="problem" role="alert">
          {refused}
        </p>
      )}
      <fieldset class="plain" disabled={config === null}>
        {part(fields)}
      </fieldset>
    </section>
  );
}

/** Whether a key is called like this, here or by other trainers: "batch size" is `per_device_train_batch_size`. */
function isMeant(field: Field, wanted: string): boolean {
  const words = wanted
    .trim()
    .toLowerCase()
    .replace(/[\s-]+/g, "_");
  return [field.path.join("."), ...field.aliases].some((name) => name.includes(words));
}

function countOf(config: Config, section: Field): string {
  const count = config.keys(section.path).length;
  return count === 0 ? "" : `${count} set`;
}

interface EntryProps {
  field: Field;
  /** In plain words, in place of the key and its description. */
  label?: string;
  about?: string;
  config: Config | null;
  problem: string | null;
  onValue: (value: string | string[] | null) => void;
}

/** A key and its value. The input is applied when the field loses focus or Enter is pressed. */
export function Entry({ field, label, about, config, problem, onValue }: EntryProps) {
  const id = useId();
  const [typed, setTyped] = useState<string | null>(null);
  const [bad, setBad] = useState<string | null>(null);
  const value = config?.get(field.path) ?? null;
  const isOneLine = value === null || !value.source.includes("\n");
  const now = field.kind === "list" || field.kind === "text" ? (value?.text ?? value?.source ?? "") : (value?.source ?? "");
  const commit = (text: string) => {
    setTyped(null);
    setBad(null);
    if (text === now) return;
    if (text.trim() === "") return onValue(null);
    if (field.kind === "list") return onValue(text.split("\n").filter((line) => line !== ""));
    if (field.kind === "text") return onValue(scalar(text));
    if (field.kind === "number") return onValue(/^[-+.\w]+$/.test(text.trim()) ? text.trim() : scalar(text));
    if (field.kind === "choice" || isValue(text)) return onValue(text);
    setTyped(text);
    setBad("This is not a valid one-line YAML value.");
  };
  const said = bad ?? problem;
  const common = {
    id,
    "aria-describedby": `${id}-about`,
    "aria-invalid": said !== null,
  };
  const box = {
    ...common,
    value: typed ?? now,
    placeholder: field.fallback,
    spellcheck: false,
    onInput: (event: { currentTarget: { value: string } }) => setTyped(event.currentTarget.value),
    onChange: (event: { currentTarget: { value: string } }) => commit(event.currentTarget.value),
  };
  let control: ComponentChildren;
  if (!isOneLine && field.kind !== "list") {
    control = (
      <pre id={id} tabIndex={0}>
        {value?.source}
      </pre>
    );
  } else if (field.kind === "choice") {
    const isKnown = now === "" || field.choices.some((choice) => choice.text === now);
    control = (
      <select {...common} value={now} onChange={(event) => commit(event.currentTarget.value)}>
        <option value="">{field.fallback ? `${field.fallback} (not set)` : "not set"}</option>
        {!isKnown && <option value={now}>{now}</option>}
        {field.choices.map((choice) => (
          <option key={choice.text} value={choice.text}>
            {choice.text}
          </option>
        ))}
      </select>
    );
  } else if (field.kind === "list") control = <textarea rows={3} {...box} />;
  else control = <input type="text" {...box} />;
  return (
    <div class={value ? "entry set" : "entry"}>
      <label for={id}>
        {label ?? field.key} {label && <code>{field.path.join(".")}</code>}
      </label>
      {control}
      <p class="note" id={`${id}-about`}>
        {said && <b class="wrong">{said} </b>}
        {about ?? field.description.replaceAll("\n", " ")}
        {field.kind === "list" && " One per line."}
      </p>
    </div>
  );
}
