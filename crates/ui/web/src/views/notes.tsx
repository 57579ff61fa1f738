// What the user notes of a run.
import { useState } from "preact/hooks";
import { type Detail, type NotesChange, runPath, send } from "../api";
import { Problem } from "../widgets";

export function NotesPart({ run }: { run: Detail }) {
  const [known, setKnown] = useState({ tags: run.tags.join(", "), text: run.notes });
  const [before, setBefore] = useState({ tags: run.tags, text: run.notes });
  const [typed, setTyped] = useState(known);
  const [problem, setProblem] = useState<string | null>(null);
  const isSaved = typed.tags === known.tags && typed.text === known.text;
  const save = async () => {
    try {
      const notes = { tags: typed.tags.split(","), text: typed.text };
      await send("PUT", runPath(run.name, "/notes"), { notes, before } satisfies NotesChange);
      setBefore(notes);
      setKnown(typed);
      setProblem(null);
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  return (
    <details class="notes" open={known.text !== ""}>
      <summary>
        Notes
        {known.tags
          .split(",")
          .filter((tag) => tag.trim())
          .map((tag) => (
            <span key={tag} class="tag">
              {tag.trim()}
            </span>
          ))}
      </summary>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void save();
        }}
      >
        <label>
          Tags, with commas between them{" "}
          <input type="text" value={typed.tags} onInput={(event) => setTyped({ ...typed, tags: event.currentTarget.value })} />
        </label>
        <label>
          <span class="hidden">Note</span>
          <textarea
            rows={3}
            value={typed.text}
            placeholder="What was tried, and how it went"
            onInput={(event) => setTyped({ ...typed, text: event.currentTarget.value })}
          />
        </label>
        <span class="tools">
          <button type="submit" disabled={isSaved}>
            {isSaved ? "Saved" : "Save notes"}
          </button>
        </span>
      </form>
      <Problem text={problem} />
    </details>
  );
}
