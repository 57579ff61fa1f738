// Captions by a vision model that the user runs on this machine.
import { useEffect, useState } from "preact/hooks";
import { type Captioning, read, send } from "../api";
import { whole } from "../format";
import type { MediaSet } from "../media_set";
import { Problem } from "../widgets";

const SERVERS = [
  { name: "Ollama", port: 11434 },
  { name: "LM Studio", port: 1234 },
  { name: "llama.cpp", port: 8080 },
];
const PROMPT =
  "Describe this picture in one or two plain sentences, as a caption for training an image model: what is seen, how it is framed and lit. Write the caption only.";
/** The delay between two looks at how far it is, in milliseconds. */
const PAUSE = 700;

export function Captioner({ media, among }: { media: MediaSet; among: number[] }) {
  const [isOpen, setOpen] = useState(false);
  const [typed, setTyped] = useState("");
  const port = Number(typed) || null;
  const [found, setFound] = useState<Record<number, string[]>>({});
  const [isLooking, setLooking] = useState(false);
  const [model, setModel] = useState("");
  const [prompt, setPrompt] = useState(PROMPT);
  const [now, setNow] = useState<Captioning | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const look = async (ports: number[]) => {
    setLooking(true);
    const all: Record<number, string[]> = {};
    for (const each of ports) {
      const models = await read<string[] | null>(`/api/captioner/models?port=${each}`).catch(() => null);
      if (models) all[each] = models;
    }
    setLooking(false);
    setFound((before) => ({ ...before, ...all }));
    const first = Object.entries(all).find(([, models]) => models.length > 0);
    if (first) {
      setTyped(first[0]);
      setModel(first[1][0]!);
    }
  };
  useEffect(() => {
    if (isOpen) void look(SERVERS.map(({ port }) => port));
  }, [isOpen]);
  // What was begun goes on without this page, and is followed when it is opened again.
  const isRunning = now?.is_running ?? false;
  useEffect(() => {
    let ended = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let known = 0;
    const follow = async () => {
      try {
        const state = await read<Captioning | null>(`/api/captioner?after=${known}`);
        if (ended) return;
        if (state && state.set === media.folder.set) {
          known = state.written_in_all;
          media.take(state.written);
        }
        setNow(state);
        if (state?.is_running) timer = setTimeout(follow, PAUSE);
      } catch (error) {
        if (!ended) setProblem((error as Error).message);
      }
    };
    void follow();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [media, isRunning]);
  const start = async () => {
    setProblem(null);
    try {
      await send("POST", "/api/captioner", { set: media.folder.set, media: among, port, model, prompt });
      setNow(await read<Captioning | null>("/api/captioner"));
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  const names = port === null ? [] : (found[port] ?? []);
  return (
    <details class="tool" open={isOpen || isRunning} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        Let a model write captions: {whole(among.length)} {among.length === 1 ? "is" : "are"} missing
      </summary>
      <p class="note">
        A vision model that you run on this machine, in Ollama, LM Studio, llama.cpp or another server with OpenAI's API. Nothing leaves the
        machine, and captions that are there are never changed.
      </p>
      <div class="controls">
        <label>
          Port{" "}
          <input
            type="number"
            min="1"
            max="65535"
            list="model-ports"
            value={typed}
            onInput={(event) => setTyped(event.currentTarget.value)}
            onChange={() => port !== null && void look([port])}
          />
          <datalist id="model-ports">
            {SERVERS.map(({ name, port }) => (
              <option key={port} value={port} label={name} />
            ))}
          </datalist>
        </label>
        <label>
          Model{" "}
          {names.length > 0 ? (
            <select value={model} onChange={(event) => setModel(event.currentTarget.value)}>
              {names.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          ) : (
            <input type="text" value={model} spellcheck={false} onInput={(event) => setModel(event.currentTarget.value)} />
          )}
        </label>
        <span class="note" role="status">
          {isLooking ? "Looking for a server …" : isOpen && Object.keys(found).length === 0 ? "No server was found." : ""}
        </span>
      </div>
      <label class="stack">
        What it is told
        <textarea rows={2} value={prompt} onInput={(event) => setPrompt(event.currentTarget.value)} />
      </label>
      <div class="tools">
        <button
          type="button"
          disabled={isRunning || among.length === 0 || port === null || !model.trim() || !prompt.trim()}
          onClick={start}
        >
          Write {whole(among.length)} {among.length === 1 ? "caption" : "captions"}
        </button>
        <button type="button" disabled={!isRunning} onClick={() => send("DELETE", "/api/captioner")}>
          Stop
        </button>
        {now && (
          <span class="progress" role="status">
            <progress max={now.total} value={now.done} aria-label={`${now.done} of ${now.total} pictures`} />
            {whole(now.done)} of {whole(now.total)}, {whole(now.written_in_all)} written{now.is_running ? "" : ", ended"}
          </span>
        )}
      </div>
      <Problem text={problem ?? now?.problems[0] ?? null} />
    </details>
  );
}
