// One picture or video, as large as the window allows, with its caption.
import { useEffect, useRef, useState } from "preact/hooks";
import { bytes } from "../format";
import type { MediaSet } from "../media_set";
import { Confirm, Problem } from "../widgets";
import type { TrainedMedium } from "./data";
import { TrimPart } from "./trim";

interface LightboxProps {
  media: MediaSet;
  medium: number;
  /** What is before and after it. */
  among: number[];
  trained: TrainedMedium | null;
  /** Others that look like it. */
  alike: number[];
  onOpen: (medium: number) => void;
  onClose: () => void;
}

export function Lightbox({ media, medium, among, trained, alike, onOpen, onClose }: LightboxProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const video = useRef<HTMLVideoElement>(null);
  const { file, kind, width, height, bytes: size } = media.folder.media[medium]!;
  const known = media.captions.value[medium] ?? null;
  const trim = media.trims.value[medium] ?? null;
  const [typed, setTyped] = useState<string | null>(null);
  const [part, setPart] = useState<[number, number] | null>(null);
  const place = among.indexOf(medium);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  useEffect(() => {
    setTyped(null);
    setPart(null);
  }, [medium]);
  const save = async () => {
    if (typed !== null && typed.trim() !== (known ?? "")) {
      const isDone = await media.change(`caption of ${file}`, new Map([[medium, typed]]));
      if (!isDone) return false;
    }
    setTyped(null);
    return true;
  };
  const go = async (to: number) => {
    const next = among[to];
    if (next !== undefined && (await save())) onOpen(next);
  };
  const close = async () => {
    if (await save()) dialog.current?.close();
  };
  // A clip that training cuts, or what the video is trimmed to, is played again and again.
  const keepInPart = () => {
    const player = video.current;
    if (!player || player.paused || (part === null && trim === null)) return;
    const [from, to] = part ?? [trim?.start ?? 0, trim?.end ?? Infinity];
    if (player.currentTime >= to || player.currentTime < from - 0.05) player.currentTime = from;
  };
  const play = (from: number, to: number) => {
    setPart([from, to]);
    if (video.current) {
      video.current.currentTime = from;
      void video.current.play();
    }
  };
  return (
    <dialog
      class="viewer lightbox"
      ref={dialog}
      aria-label={file}
      onCancel={(event) => {
        event.preventDefault();
        void close();
      }}
      onClose={onClose}
    >
      <div class="head">
        <h2>{file}</h2>
        <div class="tools">
          <button type="button" disabled={place <= 0} onClick={() => go(place - 1)}>
            Previous
          </button>
          <button type="button" disabled={place < 0 || place >= among.length - 1} onClick={() => go(place + 1)}>
            Next
          </button>
          <Confirm
            what="Delete"
            question="Delete the file and its caption from the disk? This cannot be undone."
            onYes={async () => {
              const next = among[place + 1] ?? among[place - 1];
              await media.remove([medium]);
              if (media.problem.value !== null) return;
              if (next === undefined) dialog.current?.close();
              else onOpen(next);
            }}
          />
          <button type="button" onClick={close}>
            Close
          </button>
        </div>
      </div>
      <div class="side">
        {kind === "video" ? (
          <video
            key={medium}
            ref={video}
            src={media.path(medium)}
            controls
            loop
            muted
            playsInline
            preload="metadata"
            aria-label={file}
            onTimeUpdate={keepInPart}
          />
        ) : (
          <img key={medium} src={media.path(medium)} alt={known ?? file} />
        )}
      </div>
      <p class="note">
        {width && height ? `${width} × ${height}, ` : trained?.size ? `${trained.size.join(" × ")}, ` : ""}
        {bytes(size)}
        {trained?.bucket && `, trained at ${trained.bucket.join(" × ")}`}
        {alike.length > 0 && ", looks like "}
        {alike.slice(0, 4).map((other, index) => (
          <span key={other}>
            {index > 0 && ", "}
            <button type="button" class="inline" onClick={() => onOpen(other)}>
              {media.folder.media[other]!.file}
            </button>
          </span>
        ))}
      </p>
      {kind === "video" && <TrimPart media={media} medium={medium} video={video} />}
      {trained?.problem && <p class="wrong">{trained.problem}</p>}
      {trained && trained.clips.length > 0 && trained.frames !== null && kind === "video" && (
        <p class="tools">
          <span class="note">Clips that training cuts:</span>
          {trained.clips.slice(0, 12).map(([from, count]) => (
            <button
              type="button"
              key={`${from}-${count}`}
              aria-pressed={part !== null && Math.abs(part[0] - from / trained.fps) < 0.001}
              onClick={() => play(from / trained.fps, (from + count) / trained.fps)}
            >
              {(from / trained.fps).toFixed(1)} to {((from + count) / trained.fps).toFixed(1)} s
            </button>
          ))}
          <button type="button" disabled={part === null} onClick={() => setPart(null)}>
            Whole
          </button>
        </p>
      )}
      <label class="stack">
        Caption
        <textarea
          rows={3}
          value={typed ?? known ?? ""}
          onInput={(event) => setTyped(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void go(place + 1);
          }}
        />
      </label>
      <div class="tools">
        <button type="button" class="primary" disabled={typed === null || typed.trim() === (known ?? "")} onClick={save}>
          Save caption
        </button>
        <span class="note">It is also saved by Previous, Next and Close; Ctrl+Enter goes to the next.</span>
      </div>
      <Problem text={media.problem.value} />
    </dialog>
  );
}
