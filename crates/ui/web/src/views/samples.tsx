// Samples as a grid: a row for each prompt, a column for each step of a run, or for each of several runs.
import type { ComponentChild } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { runPath, type SampleSet, type SampleText } from "../api";
import { whole } from "../format";
import { Players } from "../players";
import { Section } from "../widgets";
import { Viewer } from "./sample_viewer";

/** The samples of one step of a run. */
export interface Column {
  run: string;
  title: string;
  set: SampleSet;
}

/** A sample of a prompt in a column. */
export interface Shot {
  column: Column;
  sample: SampleText;
  /** The address of its picture or clip, or else null. */
  path: string | null;
  isClip: boolean;
  /** The address of a clip's contact sheet. */
  sheet: string | null;
  /** Width and height in pixels, as far as the sample says. */
  size: [number, number] | null;
}

const CLIP = /\.(mp4|webm|mov|m4v)$/i;
const PICTURE = /\.(png|jpe?g|gif|webp|bmp)$/i;
const SIZES = ["Small", "Medium", "Full size"] as const;
type Size = (typeof SIZES)[number];
const SIZE_KEY = "samples";
/** How far outside the window a clip is loaded. */
const MARGIN = "400px";

export function shotOf(column: Column, prompt: string): Shot | null {
  const place = column.set.samples.findIndex((sample) => sample.prompt === prompt);
  const sample = column.set.samples[place];
  if (!sample) return null;
  const files = sample.files ?? [];
  const path = (number: number) => runPath(column.run, `/samples/${column.set.step}/${place}/${number}`);
  const first = files.findIndex((file) => CLIP.test(file) || PICTURE.test(file));
  const isClip = first >= 0 && CLIP.test(files[first]!);
  const sheet = isClip ? files.findIndex((file) => PICTURE.test(file)) : -1;
  const size = /^(\d+) × (\d+)/.exec(sample.text);
  return {
    column,
    sample,
    path: first < 0 ? null : path(first),
    isClip,
    sheet: sheet < 0 ? null : path(sheet),
    size: size && [Number(size[1]), Number(size[2])],
  };
}

/** The columns of one run: of a step that was repeated, the last. */
export function columnsOf(run: string, sets: SampleSet[]): Column[] {
  const steps = new Map(sets.map((set) => [set.step, set]));
  const columns = [...steps.values()].sort((a, b) => a.step - b.step);
  return columns.map((set) => ({ run, set, title: set.step === 0 ? "Before training" : `Step ${whole(set.step)}` }));
}

interface SamplesProps {
  columns: Column[];
  /** What chooses the columns. */
  choice?: ComponentChild;
  onMore?: (() => void) | null;
}

export function SamplesPart({ columns, choice, onMore }: SamplesProps) {
  const [size, setSize] = useState<Size>(() => SIZES.find((size) => size === localStorage.getItem(SIZE_KEY)) ?? "Medium");
  const [open, setOpen] = useState<{ prompt: string; column: number } | null>(null);
  const players = useMemo(() => new Players(), []);
  const grid = useRef<HTMLDivElement>(null);
  // The newest samples are at the right.
  useEffect(() => {
    const box = grid.current;
    if (box) box.scrollLeft = box.scrollWidth;
  }, [columns.length, size]);
  const prompts = [...new Set(columns.flatMap(({ set }) => set.samples.map((sample) => sample.prompt)))];
  if (prompts.length === 0) return null;
  const shots = prompts.map((prompt) => columns.map((column) => shotOf(column, prompt)));
  const isText = shots.flat().every((shot) => !shot?.path);
  const hasClips = shots.flat().some((shot) => shot?.isClip);
  const choose = (size: Size) => {
    localStorage.setItem(SIZE_KEY, size);
    setSize(size);
  };
  return (
    <Section title="Samples">
      <div class="controls" hidden={isText && !choice && !onMore}>
        {hasClips && <Transport players={players} />}
        {!isText && (
          <fieldset class="choice">
            <legend class="hidden">Size of the samples</legend>
            {SIZES.map((each) => (
              <label key={each}>
                <input type="radio" name="sample-size" checked={each === size} onChange={() => choose(each)} />
                {each}
              </label>
            ))}
          </fieldset>
        )}
        {choice}
        {onMore && (
          <button type="button" onClick={onMore}>
            Show all steps
          </button>
        )}
      </div>
      <div
        class={`shots ${isText ? "texts" : size.split(" ")[0]!.toLowerCase()}`}
        ref={grid}
        tabIndex={0}
        role="region"
        aria-label="Samples"
      >
        <div
          class="rows-of-shots"
          ref={(element) => {
            element?.style.setProperty("--columns", String(columns.length));
          }}
        >
          {prompts.map((prompt, row) => (
            <div class="row-of-shots" key={prompt} role="group" aria-label={prompt.trim() || "Empty prompt"}>
              <h3>
                <span>{prompt.trim() || "(empty)"}</span>
              </h3>
              {shots[row]!.map((shot, column) => (
                <Cell
                  key={`${columns[column]!.run} ${columns[column]!.set.step}`}
                  title={columns[column]!.title}
                  shot={shot}
                  players={players}
                  onOpen={() => setOpen({ prompt, column })}
                />
              ))}
            </div>
          ))}
        </div>
      </div>
      {open && <Viewer columns={columns} prompts={prompts} prompt={open.prompt} column={open.column} onClose={() => setOpen(null)} />}
    </Section>
  );
}

function Cell({ title, shot, players, onOpen }: { title: string; shot: Shot | null; players: Players; onOpen: () => void }) {
  if (!shot) {
    return (
      <figure class="shot none">
        <figcaption>
          <b>{title}</b> no sample of this prompt
        </figcaption>
      </figure>
    );
  }
  const { path, sample } = shot;
  const name = `Compare ${title}: ${sample.prompt.trim()}`;
  return (
    <figure class="shot">
      {path ? (
        <button type="button" class="open" aria-label={name} onClick={onOpen}>
          {shot.isClip ? <Clip shot={shot} players={players} /> : <Still shot={shot} />}
        </button>
      ) : (
        <pre tabIndex={0}>{sample.text}</pre>
      )}
      <figcaption>
        <b>{title}</b>{" "}
        {path ? (
          sample.text
        ) : (
          <button type="button" class="quiet" aria-label={name} onClick={onOpen}>
            Compare
          </button>
        )}
      </figcaption>
    </figure>
  );
}

export function Still({ shot, eager = false }: { shot: Shot; eager?: boolean }) {
  const [width, height] = shot.size ?? [];
  return (
    <img
      src={shot.path!}
      {...(width && height ? { width, height } : {})}
      loading={eager ? "eager" : "lazy"}
      decoding="async"
      alt={`${shot.sample.prompt}, ${shot.column.title}`}
    />
  );
}

/** A clip that follows the players' clock. It is loaded when it comes near the window. */
export function Clip({ shot, players, eager = false }: { shot: Shot; players: Players; eager?: boolean }) {
  const clip = useRef<HTMLVideoElement>(null);
  const [isNear, setNear] = useState(eager);
  useEffect(() => {
    if (eager || !clip.current) return;
    const observer = new IntersectionObserver(([entry]) => setNear(entry!.isIntersecting), { rootMargin: MARGIN });
    observer.observe(clip.current);
    return () => observer.disconnect();
  }, [eager]);
  useEffect(() => {
    const video = clip.current;
    if (!isNear || !video) return;
    video.src = shot.path!;
    const stop = players.follow(video);
    return () => {
      stop();
      // Its memory and its connection are free again.
      video.removeAttribute("src");
      video.load();
    };
  }, [isNear, players, shot.path]);
  const [width, height] = shot.size ?? [];
  return (
    <video
      ref={clip}
      {...(width && height ? { width, height } : {})}
      muted
      loop
      playsInline
      preload="auto"
      aria-label={`${shot.sample.prompt}, ${shot.column.title}`}
    />
  );
}

/** Plays, pauses and moves all clips at once. */
export function Transport({ players }: { players: Players }) {
  const [playing, at, length] = [players.playing.value, players.at.value, players.length.value];
  return (
    <span class="transport">
      <button type="button" onClick={() => players.play(!playing)}>
        {playing ? "Pause" : "Play"}
      </button>
      <input
        type="range"
        min="0"
        max={length || 1}
        step="0.01"
        value={at}
        disabled={length === 0}
        aria-label="Position of all clips"
        onInput={(event) => {
          players.play(false);
          players.seek(Number(event.currentTarget.value));
        }}
      />
      <span class="number">
        {at.toFixed(1)} / {length.toFixed(1)} s
      </span>
    </span>
  );
}
