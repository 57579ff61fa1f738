// Captions of many pictures, changed together.
import { useMemo, useState } from "preact/hooks";
import { type Edit, type EditKind, edited, tagCounts } from "../captions";
import { whole } from "../format";
import type { MediaSet } from "../media_set";

const KINDS: Record<EditKind, { title: string; text: string; by?: string }> = {
  front: { title: "Put in front", text: "Text" },
  end: { title: "Put at the end", text: "Text" },
  replace: { title: "Replace", text: "What", by: "By" },
  remove: { title: "Remove a tag", text: "Tag" },
  write: { title: "Write where there is none", text: "Caption" },
};
/** How many tags are shown. */
const MAX_TAGS = 60;

interface BulkProps {
  media: MediaSet;
  /** What is changed. */
  among: number[];
  isChosen: boolean;
  onFind: (text: string) => void;
}

export function Bulk({ media, among, isChosen, onFind }: BulkProps) {
  const [edit, setEdit] = useState<Edit>({ kind: "front", text: "", by: "" });
  const captions = media.captions.value;
  const { text: label, by: labelBy, title } = KINDS[edit.kind];
  const changed = useMemo(() => {
    const found = new Map<number, string>();
    if (edit.text === "") return found;
    for (const medium of among) {
      const before = captions[medium] ?? "";
      const after = edited(before, edit);
      if (after.trim() !== before) found.set(medium, after);
    }
    return found;
  }, [edit, among, captions]);
  const tags = useMemo(() => tagCounts(among.map((medium) => captions[medium] ?? null)), [among, captions]);
  const [first] = changed;
  const name = edit.kind === "replace" ? `${title.toLowerCase()} “${edit.text}”` : `${title.toLowerCase()}: ${edit.text}`;
  return (
    <details class="tool">
      <summary>Change captions: {isChosen ? `${whole(among.length)} chosen` : `all ${whole(among.length)}`}</summary>
      <form
        class="controls"
        onSubmit={(event) => {
          event.preventDefault();
          void media.change(name, changed);
        }}
      >
        <label>
          <span class="hidden">How</span>
          <select value={edit.kind} onChange={(event) => setEdit({ ...edit, kind: event.currentTarget.value as EditKind })}>
            {Object.entries(KINDS).map(([kind, { title }]) => (
              <option key={kind} value={kind}>
                {title}
              </option>
            ))}
          </select>
        </label>
        <label>
          {label} <input type="text" value={edit.text} onInput={(event) => setEdit({ ...edit, text: event.currentTarget.value })} />
        </label>
        {labelBy && (
          <label>
            {labelBy} <input type="text" value={edit.by} onInput={(event) => setEdit({ ...edit, by: event.currentTarget.value })} />
          </label>
        )}
        <button type="submit" disabled={changed.size === 0 || media.busy.value !== null}>
          Change {whole(changed.size)} {changed.size === 1 ? "caption" : "captions"}
        </button>
      </form>
      {first && (
        <p class="note">
          {media.folder.media[first[0]]!.file}: <s>{captions[first[0]]}</s> → <b>{first[1]}</b>
        </p>
      )}
      {tags.length > 0 && (
        <>
          <h3>Tags</h3>
          <ul class="tags">
            {tags.slice(0, MAX_TAGS).map(([tag, count]) => (
              <li key={tag}>
                <button type="button" title="Show the pictures with it" onClick={() => onFind(tag)}>
                  {tag} <span class="number">{whole(count)}</span>
                </button>
                <button
                  type="button"
                  aria-label={`Remove the tag ${tag}`}
                  title="Remove it"
                  onClick={() => setEdit({ kind: "remove", text: tag, by: "" })}
                >
                  ✕
                </button>
              </li>
            ))}
          </ul>
          {tags.length > MAX_TAGS && <p class="note">And {whole(tags.length - MAX_TAGS)} more.</p>}
        </>
      )}
    </details>
  );
}
