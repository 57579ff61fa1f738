// Sends a prompt to the model or adapter of a run, or to the model without the adapter; the answer is streamed.
import { useEffect, useRef, useState } from "preact/hooks";
import { type Facts, Refused, sendForStream } from "../api";
import { keyOf } from "../format";
import { Problem, Section } from "../widgets";

interface Line {
  text?: string;
  /** For a video: the progress of its steps. */
  progress?: string;
  end?: boolean;
  error?: string | null;
  file?: string;
}

/** With the adapter, without it, or first without and then with it, from the same seed. */
type With = "adapter" | "base" | "both";

interface Answer {
  title: string;
  text: string;
  file: string | null;
}

const someSeed = () => Math.floor(Math.random() * 2 ** 31);

export function AskPart({ run, facts, config }: { run: string; facts: Facts; config: string }) {
  const isMedia = facts.kind === "diffusion";
  const isVideo = isMedia && keyOf(config, "num_frames") !== null;
  const [prompt, setPrompt] = useState("");
  const [most, setMost] = useState("200");
  const [temperature, setTemperature] = useState("0.7");
  const [chat, setChat] = useState(false);
  const [what, setWhat] = useState<With>("adapter");
  const [seed, setSeed] = useState("");
  const [size, setSize] = useState(keyOf(config, "resolution") ?? "512");
  const [answers, setAnswers] = useState<Answer[]>([]);
  const [state, setState] = useState<"" | "going" | "done" | "stopped">("");
  const [frames, setFrames] = useState("17");
  const [steps, setSteps] = useState("20");
  const [strength, setStrength] = useState("1");
  const [progress, setProgress] = useState("");
  /** A run uses the GPU: the user has to confirm. */
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const running = useRef<AbortController | null>(null);
  // Leaving the page cancels the answer.
  useEffect(() => () => running.current?.abort(), []);

  const answer = async (base: boolean, seed: number, beside: boolean, signal: AbortSignal) => {
    const title = base ? `without the adapter, seed ${seed}` : `${facts.generate_base ? "with the adapter, " : ""}seed ${seed}`;
    setAnswers((before) => [...before, { title, text: "", file: null }]);
    const change = (to: (answer: Answer) => Answer) => setAnswers((before) => [...before.slice(0, -1), to(before.at(-1)!)]);
    let ended = false;
    const side = Number(size) || 512;
    const settings = isMedia
      ? {
          steps: Number(steps) || 20,
          strength: strength === "" ? 1 : Number(strength),
          width: side,
          height: side,
          ...(isVideo ? { frames: Number(frames) || 17 } : {}),
        }
      : { chat, max_new_tokens: Number(most) || 200, temperature: Number(temperature) || 0 };
    await sendForStream("/api/generate", { run, prompt, base, seed, beside, ...settings }, signal, (line) => {
      const { text, progress, end, error, file } = JSON.parse(line) as Line;
      if (progress) setProgress((before) => progress.trim().split("\n").at(-1) || before);
      if (file) change((before) => ({ ...before, file }));
      if (text) change((before) => ({ ...before, text: before.text + text }));
      if (end) {
        ended = true;
        setProblem(error ?? null);
      }
    });
    if (!ended) setProblem("the answer was interrupted: is `surefoot ui` still running?");
  };
  const ask = async (beside = false) => {
    const controller = new AbortController();
    running.current = controller;
    setAnswers([]);
    setProblem(null);
    setBusy(false);
    setState("going");
    const same = seed.trim() === "" ? someSeed() : Number(seed);
    try {
      for (const base of what === "both" ? [true, false] : [what === "base"]) {
        setProgress("");
        await answer(base, same, beside, controller.signal);
      }
      setState("done");
    } catch (error) {
      if (controller.signal.aborted) setState("stopped");
      else {
        setState("done");
        setAnswers([]);
        setBusy(error instanceof Refused && error.status === 409 && error.message.includes("uses the GPU"));
        setProblem(error instanceof Refused ? error.message : "the connection was interrupted");
      }
    }
    running.current = null;
  };
  const going = state === "going";
  return (
    <Section title="Try it" note="The model is loaded for each answer, and unloaded afterwards.">
      <form
        class="ask"
        onSubmit={(event) => {
          event.preventDefault();
          if (!going) void ask();
        }}
      >
        <label>
          Prompt
          <textarea rows={3} value={prompt} required onInput={(event) => setPrompt(event.currentTarget.value)} />
        </label>
        <div class="tools">
          {isMedia ? (
            <>
              {isVideo && (
                <label>
                  Frames{" "}
                  <input
                    type="number"
                    min="1"
                    max="481"
                    step="4"
                    value={frames}
                    onInput={(event) => setFrames(event.currentTarget.value)}
                  />
                </label>
              )}
              <label>
                Size{" "}
                <input type="number" min="16" max="2048" step="16" value={size} onInput={(event) => setSize(event.currentTarget.value)} />
              </label>
              <label>
                Steps <input type="number" min="1" max="200" value={steps} onInput={(event) => setSteps(event.currentTarget.value)} />
              </label>
              {facts.generate_base && (
                <label>
                  Strength{" "}
                  <input
                    type="number"
                    min="-10"
                    max="10"
                    step="0.05"
                    value={strength}
                    onInput={(event) => setStrength(event.currentTarget.value)}
                  />
                </label>
              )}
            </>
          ) : (
            <>
              <label>
                Max. new tokens{" "}
                <input type="number" min="1" max="4096" value={most} onInput={(event) => setMost(event.currentTarget.value)} />
              </label>
              <label>
                Temperature{" "}
                <input
                  type="number"
                  min="0"
                  max="100"
                  step="0.1"
                  value={temperature}
                  onInput={(event) => setTemperature(event.currentTarget.value)}
                />
              </label>
              <label>
                <input type="checkbox" checked={chat} onChange={() => setChat(!chat)} /> with the chat template
              </label>
            </>
          )}
          {facts.generate_base && (
            <label>
              Model{" "}
              <select value={what} onChange={(event) => setWhat(event.currentTarget.value as With)}>
                <option value="adapter">with the adapter</option>
                <option value="base">without the adapter</option>
                <option value="both">without and with it</option>
              </select>
            </label>
          )}
          <label>
            Seed{" "}
            <input
              type="number"
              min="0"
              max="2147483647"
              value={seed}
              placeholder="random"
              onInput={(event) => setSeed(event.currentTarget.value)}
            />
          </label>
          <button type="submit" class="primary" disabled={going || prompt === ""}>
            Generate
          </button>
          <button type="button" disabled={!going} onClick={() => running.current?.abort()}>
            Stop
          </button>
        </div>
      </form>
      <p class="note" role="status">
        {going && !answers.at(-1)?.text ? progress || "Loading the model …" : state === "stopped" ? "Stopped." : ""}
      </p>
      <div class={answers.length > 1 ? "pair" : ""}>
        {answers.map(({ title, text, file }, index) => (
          <figure key={index} class="answer">
            {text !== "" && (
              <pre class="sample" tabIndex={0} aria-label={answers.length > 1 ? `Answer ${title}` : "Answer"} aria-busy={going}>
                {text}
              </pre>
            )}
            {file && <img class="tried" src={file} alt={`Output for: ${prompt}`} />}
            {(text !== "" || file) && <figcaption class="note">{title}</figcaption>}
          </figure>
        ))}
      </div>
      <Problem text={problem} />
      {busy && (
        <button type="button" onClick={() => void ask(true)}>
          Generate anyway
        </button>
      )}
    </Section>
  );
}
