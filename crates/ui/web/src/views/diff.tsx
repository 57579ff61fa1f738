// What was changed in a config, among all of its lines.
import { useMemo } from "preact/hooks";
import { type DiffLine, diff } from "../diff";
import { Section } from "../widgets";

/** Lines around a change that are shown. */
const AROUND = 2;
const SIGNS = { same: " ", gone: "−", new: "+" } as const;

export function Differences({ before, after }: { before: string; after: string }) {
  const lines = useMemo(() => diff(before, after), [before, after]);
  const changed = lines.filter(({ kind }) => kind !== "same").length;
  const isNear = (place: number) => lines.slice(Math.max(0, place - AROUND), place + AROUND + 1).some(({ kind }) => kind !== "same");
  return (
    <Section title="What is different">
      <p class="note" role="status">
        {changed === 0
          ? "Nothing yet."
          : `${lines.filter(({ kind }) => kind === "new").length} new lines, ${lines.filter(({ kind }) => kind === "gone").length} gone.`}
      </p>
      {changed > 0 && <Lines lines={lines.filter((_, place) => isNear(place))} />}
      <details>
        <summary>The whole config</summary>
        <Lines lines={lines} />
      </details>
    </Section>
  );
}

function Lines({ lines }: { lines: DiffLine[] }) {
  return (
    <pre class="diff" tabIndex={0} aria-label="Differences">
      {lines.map(({ kind, text }, index) => {
        const line = `${SIGNS[kind]} ${text}\n`;
        if (kind === "same") return line;
        return kind === "new" ? <ins key={index}>{line}</ins> : <del key={index}>{line}</del>;
      })}
    </pre>
  );
}
