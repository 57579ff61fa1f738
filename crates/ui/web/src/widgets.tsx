// Small components that several views use.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Overview } from "./api";
import { number } from "./format";

const MARKS: Record<string, string> = {
  running: "▶",
  stopping: "◼",
  completed: "✓",
  stopped: "◼",
  failed: "✕",
  interrupted: "!",
  waiting: "…",
  checking: "▶",
  refused: "✕",
};

/** The state of a run: a word, a symbol and a colour. */
export function Badge({ run }: { run: Pick<Overview, "state" | "stopping"> }) {
  return <Mark word={run.stopping ? "stopping" : run.state} />;
}

export function Mark({ word }: { word: string }) {
  return (
    <span class={`badge ${word}`}>
      <span aria-hidden="true">{MARKS[word] ?? "?"}</span> {word}
    </span>
  );
}

export function Progress({ run }: { run: Overview }) {
  const { step } = run.latest;
  const label = run.max_steps ? `${step} of ${run.max_steps} steps` : `${step} steps`;
  return (
    <span class="progress">
      {run.max_steps !== null && <progress max={run.max_steps} value={Math.min(step, run.max_steps)} aria-label={label} />}
      <span>{run.max_steps ? `${step.toLocaleString("en")} / ${run.max_steps.toLocaleString("en")}` : number(step)}</span>
    </span>
  );
}

export function Figure({ name, value }: { name: string; value: string }) {
  return (
    <div class={value === "unknown" ? "figure none" : "figure"}>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

export function Problem({ text }: { text: string | null }) {
  return text === null ? null : (
    <p class="problem" role="alert">
      {text}
    </p>
  );
}

/** Why there is no connection. */
export function Offline({ text }: { text: string | null }) {
  return text === null ? null : (
    <p class="problem" role="status">
      {text}
    </p>
  );
}

/** The title of the browser's tab while a view is shown. */
export function useTitle(title: string) {
  useEffect(() => {
    document.title = `${title} – Surefoot`;
  }, [title]);
}

export function Copy({ text }: { text: string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
    } catch {
      // Browsers refuse this on unencrypted pages from the network: the text can still be selected.
      setDone(false);
    }
  };
  return (
    <div class="copy">
      <pre tabIndex={0}>{text}</pre>
      <button type="button" onClick={copy} aria-label={`Copy: ${text.slice(0, 60)}`}>
        {done ? "Copied" : "Copy"}
      </button>
    </div>
  );
}

/** A button that asks for confirmation; Escape is No. */
export function Confirm(props: { what: string; question: string; onYes: () => void; disabled?: boolean }) {
  const [asking, setAsking] = useState(false);
  const button = useRef<HTMLButtonElement>(null);
  const isFirst = useRef(true);
  // The focus goes to the safe answer, and back to where it was.
  useEffect(() => {
    if (!isFirst.current) button.current?.focus();
    isFirst.current = false;
  }, [asking]);
  const answer = (yes: boolean) => {
    setAsking(false);
    if (yes) props.onYes();
  };
  if (!asking) {
    return (
      <button type="button" ref={button} disabled={props.disabled ?? false} onClick={() => setAsking(true)}>
        {props.what}
      </button>
    );
  }
  return (
    <span class="confirm" role="group" aria-label={props.question} onKeyDown={(event) => event.key === "Escape" && answer(false)}>
      <span>{props.question}</span>
      <button type="button" class="danger" onClick={() => answer(true)}>
        Yes
      </button>
      <button type="button" ref={button} onClick={() => answer(false)}>
        No
      </button>
    </span>
  );
}

export function Section({ title, children, note }: { title: string; children: ComponentChildren; note?: string }) {
  return (
    <section>
      <h2>{title}</h2>
      {note && <p class="note">{note}</p>}
      {children}
    </section>
  );
}
