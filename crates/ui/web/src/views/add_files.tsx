// Adds files to a folder: a button, and a place to drop them.
import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import { send } from "../api";
import { dropped, upload } from "../upload";
import { Problem } from "../widgets";

interface AddFilesProps {
  path: string;
  /** Called once files were added. */
  onAdded: () => void;
  children?: ComponentChildren;
}

export function AddFiles({ path, onAdded, children }: AddFilesProps) {
  const input = useRef<HTMLInputElement>(null);
  const [said, setSaid] = useState<string | null>(null);
  const [wrong, setWrong] = useState<string[]>([]);
  const [isOver, setOver] = useState(false);
  const add = async (files: File[]) => {
    if (files.length === 0) return;
    setWrong([]);
    let refused = files.length;
    try {
      const wrong = await upload(path, files, setSaid);
      refused = wrong.length;
      setWrong(wrong);
    } catch (error) {
      setWrong([(error as Error).message]);
    }
    setSaid(null);
    // The folder is as it was otherwise, and what is chosen in it stays so.
    if (refused < files.length) onAdded();
  };
  return (
    <section
      aria-label="Files"
      class={isOver ? "drop over" : "drop"}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        if (event.dataTransfer) void dropped(event.dataTransfer).then(add);
      }}
    >
      {children}
      <p class="tools">
        <button type="button" disabled={said !== null} onClick={() => input.current?.click()}>
          Add files
        </button>
        <input
          ref={input}
          type="file"
          multiple
          class="hidden"
          tabIndex={-1}
          aria-label="Files to add"
          onChange={(event) => {
            const files = [...(event.currentTarget.files ?? [])];
            event.currentTarget.value = "";
            void add(files);
          }}
        />
        <span class="note" role="status">
          {said ?? "or drop pictures, videos, texts or a folder here"}
        </span>
      </p>
      <Problem
        text={wrong.length === 0 ? null : wrong.slice(0, 5).join(" · ") + (wrong.length > 5 ? ` and ${wrong.length - 5} more` : "")}
      />
    </section>
  );
}

/** Makes a folder in another. */
export function NewFolder({ path, onMade }: { path: string; onMade: (path: string) => void }) {
  const [name, setName] = useState<string | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  if (name === null) {
    return (
      <button type="button" onClick={() => setName("")}>
        New folder
      </button>
    );
  }
  const make = async () => {
    try {
      await send("POST", "/api/folder", { path, name });
      setName(null);
      onMade(`${path.replace(/\/$/, "")}/${name}`);
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  return (
    <form
      class="confirm"
      onSubmit={(event) => {
        event.preventDefault();
        void make();
      }}
    >
      <label>
        <span class="hidden">Name of the new folder</span>
        <input
          type="text"
          value={name}
          placeholder="Name"
          ref={(input) => input?.focus()}
          onInput={(event) => setName(event.currentTarget.value)}
          onKeyDown={(event) => event.key === "Escape" && setName(null)}
        />
      </label>
      <button type="submit" disabled={!name.trim()}>
        Make
      </button>
      <Problem text={problem} />
    </form>
  );
}
