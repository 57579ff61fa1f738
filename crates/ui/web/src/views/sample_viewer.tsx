// Two samples of a prompt over each other or side by side, as large as the window allows.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Players } from "../players";
import { Clip, type Column, type Shot, Still, shotOf, Transport } from "./samples";

const MODES = ["Slider", "Crossfade", "Side by side"] as const;
type Mode = (typeof MODES)[number];
/** Where the slider begins, in percent. */
const MIDDLE = 50;

interface Opened {
  columns: Column[];
  prompts: string[];
  prompt: string;
  column: number;
  onClose: () => void;
}

export function Viewer({ columns, prompts, prompt: first, column, onClose }: Opened) {
  const [prompt, setPrompt] = useState(first);
  // Compared with the first sample, which itself is compared with the last one.
  const [left, setLeft] = useState(0);
  const [right, setRight] = useState(column === 0 ? columns.length - 1 : column);
  const [mode, setMode] = useState<Mode>("Slider");
  const players = useMemo(() => new Players(), []);
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  const shots = [shotOf(columns[left]!, prompt), shotOf(columns[right]!, prompt)] as const;
  const hasMedia = shots.some((shot) => shot?.path);
  const place = prompts.indexOf(prompt);
  const side = (label: string, value: number, set: (column: number) => void) => (
    <label>
      {label}{" "}
      <select aria-label={`${label} sample`} value={value} onChange={(event) => set(Number(event.currentTarget.value))}>
        {columns.map(({ title, run, set }, index) => (
          <option key={`${run} ${set.step}`} value={index}>
            {title}
          </option>
        ))}
      </select>
    </label>
  );
  return (
    <dialog class="viewer" ref={dialog} aria-label="Compare samples" onClose={onClose}>
      <div class="head">
        <h2>{prompt.trim() || "(empty)"}</h2>
        <div class="tools">
          {prompts.length > 1 && (
            <>
              <button type="button" disabled={place === 0} onClick={() => setPrompt(prompts[place - 1]!)}>
                Previous prompt
              </button>
              <button type="button" disabled={place === prompts.length - 1} onClick={() => setPrompt(prompts[place + 1]!)}>
                Next prompt
              </button>
            </>
          )}
          <button type="button" onClick={() => dialog.current?.close()}>
            Close
          </button>
        </div>
      </div>
      <div class="controls">
        {side("Left", left, setLeft)}
        {side("Right", right, setRight)}
        {hasMedia && (
          <fieldset class="choice">
            <legend class="hidden">How they are compared</legend>
            {MODES.map((each) => (
              <label key={each}>
                <input type="radio" name="viewer-mode" checked={each === mode} onChange={() => setMode(each)} />
                {each}
              </label>
            ))}
          </fieldset>
        )}
        {shots.some((shot) => shot?.isClip) && <Transport players={players} />}
      </div>
      {hasMedia && mode !== "Side by side" ? (
        <Overlay shots={shots} mode={mode} players={players} />
      ) : (
        <div class="pair">
          {shots.map((shot, index) => (
            <figure key={index} class="side">
              {shot?.path ? (
                <Medium shot={shot} players={players} />
              ) : (
                <pre tabIndex={0}>{shot?.sample.text ?? "no sample of this prompt"}</pre>
              )}
              <Caption shot={shot} />
            </figure>
          ))}
        </div>
      )}
    </dialog>
  );
}

function Overlay({ shots, mode, players }: { shots: readonly [Shot | null, Shot | null]; mode: Mode; players: Players }) {
  const [at, setAt] = useState(MIDDLE);
  const stage = useRef<HTMLDivElement>(null);
  const [width, height] = shots[0]?.size ?? shots[1]?.size ?? [1, 1];
  useLayoutEffect(() => {
    for (const [name, value] of [
      ["--at", `${at}%`],
      ["--width", width],
      ["--height", height],
    ] as const)
      stage.current?.style.setProperty(name, String(value));
  }, [at, width, height]);
  const drag = (event: PointerEvent) => {
    if (mode !== "Slider" || event.buttons !== 1) return;
    const { left, width } = stage.current!.getBoundingClientRect();
    setAt(Math.min(100, Math.max(0, ((event.clientX - left) / width) * 100)));
  };
  return (
    <>
      <div class="stage-room">
        <div class={`stage ${mode.toLowerCase()}`} ref={stage} onPointerDown={drag} onPointerMove={drag}>
          {shots.map((shot, index) => (
            <div key={index} class={index === 0 ? "layer" : "layer upper"}>
              {shot?.path ? <Medium shot={shot} players={players} /> : <p class="note">no sample of this prompt</p>}
            </div>
          ))}
        </div>
      </div>
      <div class="between">
        <Caption shot={shots[0]} />
        <input
          type="range"
          min="0"
          max="100"
          step="0.5"
          value={at}
          aria-label={mode === "Slider" ? "Where the right sample begins" : "How much of the right sample is seen"}
          onInput={(event) => setAt(Number(event.currentTarget.value))}
        />
        <Caption shot={shots[1]} />
      </div>
    </>
  );
}

function Medium({ shot, players }: { shot: Shot; players: Players }) {
  return shot.isClip ? <Clip key={shot.path} shot={shot} players={players} eager /> : <Still key={shot.path} shot={shot} eager />;
}

function Caption({ shot }: { shot: Shot | null }) {
  if (!shot) return <p class="caption" />;
  return (
    <div class="caption">
      <b>{shot.column.title}</b> {shot.path && shot.sample.text}
      {shot.sheet && (
        <details>
          <summary>Frames</summary>
          <img src={shot.sheet} loading="lazy" alt={`Frames: ${shot.sample.prompt}, ${shot.column.title}`} />
        </details>
      )}
    </div>
  );
}
