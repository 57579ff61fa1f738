// A prompt to what a run has made; the answer comes as it is written, beside that of the model without the adapter.
import { useEffect, useRef, useState } from "preact/hooks";
import { Refused, sendForStream } from "../api";
import { Problem, Section } from "../widgets";

interface Line {
  text?: string;
  end?: boolean;
  error?: string | null;
}

export function AskPart({ run, adapter }: { run: string; adapter: boolean }) {
  const [prompt, setPrompt] = useState("");
  const [most, setMost] = useState("200");
  const [temperature, setTemperature] = useState("0.7");
  const [chat, setChat] = useState(false);
  const [base, setBase] = useState(false);
  const [answer, setAnswer] = useState<string | null>(null);
  const [state, setState] = useState<"" | "going" | "done" | "stopped">("");
  const [problem, setProblem] = useState<string | null>(null);
  const running = useRef<AbortController | null>(null);
  // Who leaves the page wants no answer.
  useEffect(() => () => running.current?.abort(), []);

  const ask = async () => {
    const controller = new AbortController();
    running.current = controller;
    setAnswer("");
    setProblem(null);
    setState("going");
    let ended = false;
    try {
      const body = { run, prompt, chat, base, max_new_tokens: Number(most) || 200, temperature: Number(temperature) || 0, seed: Math.floor(Math.random() * 2 ** 31) };
      await sendForStream("/api/generate", body, controller.signal, (line) => {
        const { text, end, error } = JSON.parse(line) as Line;
        if (text) setAnswer((before) => (before ?? "") + text);
        if (end) {
          ended = true;
          setProblem(error ?? null);
        }
      });
      if (!ended) setProblem("the answer broke off: is `surefoot ui` still running?");
      setState("done");
    } catch (error) {
      if (controller.signal.aborted) setState("stopped");
      else {
        setState("done");
        setProblem(error instanceof Refused ? error.message : "the connection broke off");
      }
    }
    running.current = null;
  };
  const going = state === "going";
  return (
    <Section title="Try it" note="The model is loaded for the answer and leaves the memory with it.">
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
          <label>
            Most tokens <input type="number" min="1" max="4096" value={most} onInput={(event) => setMost(event.currentTarget.value)} />
          </label>
          <label>
            Temperature{" "}
            <input type="number" min="0" max="100" step="0.1" value={temperature} onInput={(event) => setTemperature(event.currentTarget.value)} />
          </label>
          <label>
            <input type="checkbox" checked={chat} onChange={() => setChat(!chat)} /> as a chat
          </label>
          {adapter && (
            <label>
              <input type="checkbox" checked={base} onChange={() => setBase(!base)} /> without the adapter
            </label>
          )}
          <button type="submit" disabled={going || prompt === ""}>
            Ask
          </button>
          <button type="button" disabled={!going} onClick={() => running.current?.abort()}>
            Stop
          </button>
        </div>
      </form>
      <p class="note" role="status">
        {going && answer === "" ? "Loading the model …" : state === "stopped" ? "Stopped." : ""}
      </p>
      {answer !== null && answer !== "" && (
        <pre class="sample" tabIndex={0} aria-label="Answer" aria-busy={going}>
          {answer}
        </pre>
      )}
      <Problem text={problem} />
    </Section>
  );
}
