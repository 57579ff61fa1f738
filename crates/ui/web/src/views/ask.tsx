// Sends a prompt to the model or adapter of a run, or to the model without the adapter; the answer is streamed.
import { useEffect, useRef, useState } from "preact/hooks";
import { type Facts, Refused, sendForStream } from "../api";
import { Problem, Section } from "../widgets";

interface Line {
  text?: string;
  /** For a video: the progress of its steps. */
  progress?: string;
  end?: boolean;
  error?: string | null;
  file?: string;
}

export function AskPart({ run, facts }: { run: string; facts: Facts }) {
  const video = facts.kind === "diffusion";
  const [prompt, setPrompt] = useState("");
  const [most, setMost] = useState("200");
  const [temperature, setTemperature] = useState("0.7");
  const [chat, setChat] = useState(false);
  const [base, setBase] = useState(false);
  const [answer, setAnswer] = useState<string | null>(null);
  const [state, setState] = useState<"" | "going" | "done" | "stopped">("");
  const [frames, setFrames] = useState("17");
  const [steps, setSteps] = useState("20");
  const [progress, setProgress] = useState("");
  const [file, setFile] = useState<string | null>(null);
  /** A run uses the GPU: the user has to confirm. */
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const running = useRef<AbortController | null>(null);
  // Leaving the page cancels the answer.
  useEffect(() => () => running.current?.abort(), []);

  const ask = async (beside = false) => {
    const controller = new AbortController();
    running.current = controller;
    setAnswer("");
    setProblem(null);
    setBusy(false);
    setFile(null);
    setProgress("");
    setState("going");
    let ended = false;
    try {
      const seed = Math.floor(Math.random() * 2 ** 31);
      const settings = video
        ? { frames: Number(frames) || 17, steps: Number(steps) || 20 }
        : { chat, max_new_tokens: Number(most) || 200, temperature: Number(temperature) || 0 };
      const body = { run, prompt, base, seed, beside, ...settings };
      await sendForStream("/api/generate", body, controller.signal, (line) => {
        const { text, progress, end, error, file } = JSON.parse(line) as Line;
        if (progress) setProgress((before) => progress.trim().split("\n").at(-1) || before);
        if (file) setFile(file);
        if (text) setAnswer((before) => (before ?? "") + text);
        if (end) {
          ended = true;
          setProblem(error ?? null);
        }
      });
      if (!ended) setProblem("the answer was interrupted: is `surefoot ui` still running?");
      setState("done");
    } catch (error) {
      if (controller.signal.aborted) setState("stopped");
      else {
        setState("done");
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
          {video ? (
            <>
              <label>
                Frames{" "}
                <input type="number" min="1" max="481" step="4" value={frames} onInput={(event) => setFrames(event.currentTarget.value)} />
              </label>
              <label>
                Steps <input type="number" min="1" max="200" value={steps} onInput={(event) => setSteps(event.currentTarget.value)} />
              </label>
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
              <input type="checkbox" checked={base} onChange={() => setBase(!base)} /> without the adapter
            </label>
          )}
          <button type="submit" disabled={going || prompt === ""}>
            Generate
          </button>
          <button type="button" disabled={!going} onClick={() => running.current?.abort()}>
            Stop
          </button>
        </div>
      </form>
      <p class="note" role="status">
        {going && answer === "" ? progress || "Loading the model …" : state === "stopped" ? "Stopped." : ""}
      </p>
      {answer !== null && answer !== "" && (
        <pre class="sample" tabIndex={0} aria-label="Answer" aria-busy={going}>
          {answer}
        </pre>
      )}
      {file && <img class="tried" src={file} alt={`Output for: ${prompt}`} />}
      <Problem text={problem} />
      {busy && (
        <button type="button" onClick={() => void ask(true)}>
          Generate anyway
        </button>
      )}
    </Section>
  );
}
