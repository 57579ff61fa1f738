// Sends a prompt to the model or adapter of a run, or to the model without the adapter; the answer is streamed. A chat
// goes on with each prompt.
import { useEffect, useRef, useState } from "preact/hooks";
import { type Detail, type Facts, Refused, sendForStream } from "../api";
import { keyOf, whole } from "../format";
import { Problem, Section } from "../widgets";

interface Line {
  text?: string;
  /** For a picture or video: the progress of its steps. */
  progress?: string;
  end?: boolean;
  error?: string | null;
  file?: string;
}

/** With the adapter, without it, or first without and then with it, from the same seed. */
type With = "adapter" | "base" | "both";

/** One prompt, and what was answered with the adapter, without it or both. */
interface Turn {
  prompt: string;
  answers: Answer[];
}

interface Answer {
  base: boolean;
  title: string;
  text: string;
  file: string | null;
}

const someSeed = () => Math.floor(Math.random() * 2 ** 31);

interface AskProps {
  run: Detail;
  facts: Facts;
  /** A prompt of its samples. */
  example: string;
}

export function AskPart({ run: { name: run, config, checkpoints }, facts, example }: AskProps) {
  const isMedia = facts.kind === "diffusion";
  const lengths = keyOf(config, "num_frames");
  const isVideo = isMedia && lengths !== null;
  const hasAdapter = facts.generate_base !== null;
  const [prompt, setPrompt] = useState(example);
  const [chat, setChat] = useState(() => facts.commands.some(({ line }) => line.startsWith("surefoot chat ")));
  const [what, setWhat] = useState<With>("adapter");
  const [checkpoint, setCheckpoint] = useState(facts.generate ? "" : String(checkpoints.at(-1)));
  const start = (key: string, other: string) => useState(keyOf(config, key) ?? other);
  const [most, setMost] = start("max_new_tokens", "200");
  const [temperature, setTemperature] = start("temperature", "0.7");
  const [size, setSize] = start("resolution", "512");
  const [steps, setSteps] = start("num_inference_steps", "20");
  const [frames, setFrames] = useState(() => /(\d+)\]?$/.exec(lengths ?? "")?.[1] ?? "17");
  const [strength, setStrength] = useState("1");
  const [seed, setSeed] = useState("");
  const [turns, setTurns] = useState<Turn[]>([]);
  const [state, setState] = useState<"" | "going" | "done" | "stopped">("");
  const [progress, setProgress] = useState("");
  /** A run uses the GPU: the user has to confirm. */
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const running = useRef<AbortController | null>(null);
  // Leaving the page cancels the answer.
  useEffect(() => () => running.current?.abort(), []);
  const isChat = chat && !isMedia;
  const going = state === "going";
  const last = turns.at(-1)?.answers.at(-1);

  const answer = async (before: Turn[], base: boolean, seed: number, beside: boolean, signal: AbortSignal) => {
    const at = checkpoint === "" || base ? {} : { checkpoint: Number(checkpoint) };
    const which = base ? "without the adapter, " : hasAdapter ? "with the adapter, " : "";
    const title = `${which}${at.checkpoint === undefined ? "" : `step ${whole(at.checkpoint)}, `}seed ${seed}`;
    const change = (to: (answers: Answer[]) => Answer[]) =>
      setTurns((turns) => turns.map((turn, place) => (place === turns.length - 1 ? { ...turn, answers: to(turn.answers) } : turn)));
    const changeLast = (to: (answer: Answer) => Answer) => change((answers) => [...answers.slice(0, -1), to(answers.at(-1)!)]);
    change((answers) => [...answers, { base, title, text: "", file: null }]);
    let ended = false;
    let failed = false;
    const side = Number(size) || 512;
    const history = before.flatMap(({ prompt, answers }) => {
      const said = answers.find((answer) => answer.base === base) ?? answers[0];
      return said?.text
        ? [
            { role: "user", content: prompt },
            { role: "assistant", content: said.text },
          ]
        : [];
    });
    const settings = isMedia
      ? {
          steps: Number(steps) || 20,
          strength: strength === "" ? 1 : Number(strength),
          width: side,
          height: side,
          ...(isVideo ? { frames: Number(frames) || 17 } : {}),
        }
      : { chat, history, max_new_tokens: Number(most) || 200, temperature: Number(temperature) || 0 };
    await sendForStream("/api/generate", { run, prompt, base, seed, beside, ...at, ...settings }, signal, (line) => {
      const { text, progress, end, error, file } = JSON.parse(line) as Line;
      if (progress) setProgress((before) => progress.trim().split("\n").at(-1) || before);
      if (file) changeLast((before) => ({ ...before, file }));
      if (text) changeLast((before) => ({ ...before, text: before.text + text }));
      if (end) {
        ended = true;
        failed = Boolean(error);
        setProblem(error ?? null);
      }
    });
    if (!ended) setProblem("the answer was interrupted: is `surefoot ui` still running?");
    return ended && !failed;
  };
  const ask = async (beside = false) => {
    const controller = new AbortController();
    running.current = controller;
    const before = isChat ? turns : [];
    setTurns([...before, { prompt, answers: [] }]);
    setProblem(null);
    setBusy(false);
    setState("going");
    let answered = true;
    const same = seed.trim() === "" ? someSeed() : Number(seed);
    try {
      for (const base of what === "both" ? [true, false] : [what === "base"]) {
        setProgress("");
        if (!(await answer(before, base, same, beside, controller.signal))) answered = false;
      }
      setState("done");
      // What was not answered can be asked again.
      if (isChat && answered) setPrompt("");
      else if (isChat) setTurns((turns) => (turns.at(-1)?.answers.some((answer) => answer.text) ? turns : before));
    } catch (error) {
      if (controller.signal.aborted) setState("stopped");
      else {
        setState("done");
        setTurns(before);
        setBusy(error instanceof Refused && error.status === 409 && error.message.includes("uses the GPU"));
        setProblem(error instanceof Refused ? error.message : "the connection was interrupted");
      }
    }
    running.current = null;
  };
  const shown = turns.map(({ prompt, answers }, place) => (
    <div key={place}>
      {isChat && <p class="asked">{prompt}</p>}
      <div class={answers.length > 1 ? "pair" : ""}>
        {answers.map(({ title, text, file }) => (
          <figure key={title} class="answer">
            {text !== "" && (
              <pre
                class="sample"
                tabIndex={0}
                aria-label={answers.length > 1 ? `Answer ${title}` : "Answer"}
                aria-busy={going && place === turns.length - 1}
              >
                {text}
              </pre>
            )}
            {file && <img class="tried" src={file} alt={`Output for: ${prompt}`} />}
            {(text !== "" || file) && <figcaption class="note">{title}</figcaption>}
          </figure>
        ))}
      </div>
    </div>
  ));
  const status = (
    <p class="note" role="status">
      {going && !last?.text ? progress || "Loading the model …" : state === "stopped" ? "Stopped." : ""}
    </p>
  );
  return (
    <Section title="Try it" note="The model is loaded for each answer, and unloaded afterwards.">
      {isChat && shown}
      {isChat && status}
      <form
        class="ask"
        onSubmit={(event) => {
          event.preventDefault();
          if (!going) void ask();
        }}
      >
        <label>
          {isChat && turns.length > 0 ? "Go on" : "Prompt"}
          <textarea
            rows={isChat ? 2 : 3}
            value={prompt}
            required
            onInput={(event) => setPrompt(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key !== "Enter" || event.shiftKey || event.isComposing || !isChat) return;
              event.preventDefault();
              if (!going && prompt !== "") void ask();
            }}
          />
        </label>
        <div class="tools">
          {hasAdapter && (
            <label>
              Model
              <select value={what} onChange={(event) => setWhat(event.currentTarget.value as With)}>
                <option value="adapter">with the adapter</option>
                <option value="base">without the adapter</option>
                <option value="both">without and with it</option>
              </select>
            </label>
          )}
          {(hasAdapter || facts.generate_checkpoint) && checkpoints.length > 0 && (
            <label>
              Checkpoint
              <select value={checkpoint} disabled={what === "base"} onChange={(event) => setCheckpoint(event.currentTarget.value)}>
                {facts.generate && <option value="">the result</option>}
                {checkpoints.toReversed().map((step) => (
                  <option key={step} value={step}>
                    step {whole(step)}
                  </option>
                ))}
              </select>
            </label>
          )}
          {isMedia && hasAdapter && <NumberInput label="Strength" min={-10} max={10} step={0.05} value={strength} onValue={setStrength} />}
          {isMedia && <NumberInput label="Size" min={16} max={2048} step={16} value={size} onValue={setSize} />}
          {isVideo && <NumberInput label="Frames" min={1} max={481} step={4} value={frames} onValue={setFrames} />}
          {isMedia && <NumberInput label="Steps" min={1} max={200} value={steps} onValue={setSteps} />}
          {!isMedia && <NumberInput label="Max. new tokens" min={1} max={4096} value={most} onValue={setMost} />}
          {!isMedia && <NumberInput label="Temperature" min={0} max={100} step={0.1} value={temperature} onValue={setTemperature} />}
          <NumberInput label="Seed" min={0} max={2147483647} value={seed} placeholder="random" onValue={setSeed} />
          {!isMedia && (
            <label class="check">
              <input type="checkbox" checked={chat} onChange={() => setChat(!chat)} /> as a chat
            </label>
          )}
          <button type="submit" class="primary" disabled={going || prompt === ""}>
            {isChat ? "Send" : "Generate"}
          </button>
          <button type="button" disabled={!going} onClick={() => running.current?.abort()}>
            Stop
          </button>
          {isChat && turns.length > 0 && (
            <button type="button" disabled={going} onClick={() => setTurns([])}>
              New chat
            </button>
          )}
        </div>
      </form>
      {!isChat && status}
      {!isChat && shown}
      <Problem text={problem} />
      {busy && (
        <button type="button" onClick={() => void ask(true)}>
          Generate anyway
        </button>
      )}
    </Section>
  );
}

interface NumberProps {
  label: string;
  min: number;
  max: number;
  step?: number;
  value: string;
  placeholder?: string;
  onValue: (value: string) => void;
}

function NumberInput({ label, onValue, ...rest }: NumberProps) {
  return (
    <label>
      {label}
      <input type="number" {...rest} onInput={(event) => onValue(event.currentTarget.value)} />
    </label>
  );
}
