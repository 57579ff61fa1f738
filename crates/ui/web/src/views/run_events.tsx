// What happened in a run, and why it failed.
import { useEffect, useState } from "preact/hooks";
import { type Explanation, read, runPath } from "../api";
import { sentence } from "../events";
import type { Kept } from "../series";
import { Copy, Section } from "../widgets";

export function Why({ name }: { name: string }) {
  const [found, setFound] = useState<{ explanation: Explanation | null } | null>(null);
  useEffect(() => {
    read<{ explanation: Explanation | null }>(runPath(name, "/explain")).then(setFound, () => {});
  }, [name]);
  const matches = found?.explanation?.matches ?? [];
  if (matches.length === 0) return null;
  return (
    <Section title="Cause of the failure">
      {matches.map((match) => (
        <article class="finding" key={match.source + match.cause}>
          <p>{match.cause}</p>
          {match.fix.length > 0 && <Copy text={match.fix.join("\n")} />}
          <p class="note">
            <a href={match.source} rel="noreferrer noopener" target="_blank">
              {match.source}
            </a>
          </p>
        </article>
      ))}
    </Section>
  );
}

export function EventsPart({ kept }: { kept: Kept }) {
  if (kept.events.length === 0 && kept.unreadable === 0) return null;
  return (
    <Section title="Events">
      {kept.unreadable > 0 && <p class="note">{kept.unreadable} damaged lines of metrics.jsonl were skipped.</p>}
      {kept.droppedEvents > 0 && <p class="note">{kept.droppedEvents} earlier events are not shown.</p>}
      <ul class="events">
        {kept.events
          .slice(-100)
          .reverse()
          .map((event, index) => (
            <li key={`${event.step}-${index}`}>
              <b>step {event.step.toLocaleString("en")}</b> {sentence(event)}
              {event.record && (
                <details>
                  <summary>Record</summary>
                  <code>{JSON.stringify(event.record)}</code>
                </details>
              )}
            </li>
          ))}
      </ul>
    </Section>
  );
}
