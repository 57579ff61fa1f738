// The output of a run or a job as text, scrolled to its end.
import { useEffect, useRef, useState } from "preact/hooks";
import { type LogPart, read } from "../api";

/** Characters at the end that are kept. */
const KEPT = 300_000;
const PERIOD = 1500;

export function Log({ path, live }: { path: string; live: boolean }) {
  const [text, setText] = useState<string | null>(null);
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLPreElement>(null);
  const place = useRef<{ inode: number; to: number } | null>(null);
  useEffect(() => {
    if (!open) return;
    let ended = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const look = async () => {
      try {
        const { current } = place;
        const query = current ? `?inode=${current.inode}&offset=${current.to}` : "";
        const part = await read<LogPart | null>(path + query);
        if (ended) return;
        if (part) {
          const goesOn = current !== null && part.inode === current.inode && part.from === current.to;
          place.current = { inode: part.inode, to: part.to };
          setText((before) => ((goesOn ? (before ?? "") : "") + part.text).slice(-KEPT));
        }
      } catch {
        // A lost connection is reported elsewhere; the next request may succeed.
      }
      if (!ended && live) timer = setTimeout(look, PERIOD);
    };
    void look();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [path, live, open]);
  // After scrolling up, the position stays where it is.
  const atEnd = useRef(true);
  useEffect(() => {
    if (box.current && atEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text]);
  return (
    <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Log</summary>
      {text === null ? (
        <p class="note">No log: the output of a run that was started in a terminal is shown there.</p>
      ) : (
        <pre
          class="log"
          ref={box}
          tabIndex={0}
          role="log"
          aria-label="Log"
          aria-live="off"
          onScroll={(event) => {
            const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
            atEnd.current = scrollHeight - scrollTop - clientHeight < 40;
          }}
        >
          {text}
        </pre>
      )}
    </details>
  );
}
