// Which part of a video is trained on: its first and last moment, typed or taken from the player.
import type { RefObject } from "preact";
import type { Trim } from "../api";
import type { MediaSet } from "../media_set";

/** Times as they are kept: frames of a model take at least 30 of these. */
const rounded = (seconds: number) => Math.round(seconds * 1000) / 1000;
const shown = (seconds: number) => `${rounded(seconds)} s`;

interface TrimProps {
  media: MediaSet;
  medium: number;
  video: RefObject<HTMLVideoElement | null>;
}

export function TrimPart({ media, medium, video }: TrimProps) {
  const trim = media.trims.value[medium] ?? null;
  const set = (changed: Partial<Trim>) => {
    const { start, end } = { start: null, end: null, ...trim, ...changed };
    void media.trim(medium, start === null && end === null ? null : { start: start ?? null, end: end ?? null });
  };
  const bound = (key: "start" | "end", name: string, otherwise: string) => (
    <>
      <label>
        {name}{" "}
        <input
          type="number"
          class="number"
          min="0"
          step="0.001"
          placeholder={otherwise}
          value={trim?.[key] ?? ""}
          onChange={(event) => set({ [key]: event.currentTarget.value === "" ? null : Number(event.currentTarget.value) })}
        />
      </label>
      <button type="button" onClick={() => video.current && set({ [key]: rounded(video.current.currentTime) })}>
        {name} here
      </button>
    </>
  );
  return (
    <fieldset class="plain">
      <legend class="hidden">The part that is trained on</legend>
      <div class="tools">
        {bound("start", "Begin", "0")}
        {bound("end", "End", "the end")}
        <button type="button" disabled={trim === null} onClick={() => set({ start: null, end: null })}>
          Whole video
        </button>
        <span class="note" role="status">
          {trim === null
            ? "All of it is trained on."
            : `Trained on from ${shown(trim.start ?? 0)} to ${trim.end === null || trim.end === undefined ? "its end" : shown(trim.end)}.`}
        </span>
      </div>
    </fieldset>
  );
}
