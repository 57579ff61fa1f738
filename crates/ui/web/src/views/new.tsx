// A new run: a config as text, or the config of another run with one key changed; errors are shown while the user types.
import { useEffect, useState } from "preact/hooks";
import {
  type Asked,
  type ConfigProblem,
  type Detail,
  type DryRun,
  type JobConfig,
  type NewJob,
  Refused,
  read,
  runPath,
  send,
} from "../api";
import { duration, whole } from "../format";
import { Section, useTitle } from "../widgets";
import { DataPart } from "./data";
import { Editor } from "./editor";
import { MemoryPart } from "./memory";

const START = `name: my-run

data:
  dataset: shakespeare

train:
  max_steps: 800
  learning_rate: 1e-3
`;
/** The delay from the last keystroke to a check of the config, in milliseconds. */
const PAUSE = 400;
const DRAFT = "draft";

/** The full names of the keys of a config as the trainer writes it. */
function keysOf(config: string): string[] {
  const keys: string[] = [];
  let section = "";
  for (const line of config.split("\n")) {
    const top = /^(\w+):/.exec(line);
    const below = /^ {2}(\w+):/.exec(line);
    if (top) section = top[1]!;
    if (below) keys.push(`${section}.${below[1]}`);
    else if (top && !line.endsWith(":")) keys.push(section);
  }
  return keys.filter((key) => key !== "name" && key !== "output_dir");
}

export function NewView({ like, of }: { like: string | null; of: string | null }) {
  useTitle("New run");
  const [config, setConfig] = useState(() => (of === null ? (localStorage.getItem(DRAFT) ?? START) : ""));
  /** What a job overrides. */
  const [set, setSet] = useState<Record<string, string>>({});
  /** The request that was checked last. */
  const [checked, setChecked] = useState("");
  const [old, setOld] = useState("");
  const [name, setName] = useState("");
  const [key, setKey] = useState("");
  const [value, setValue] = useState("");
  const [problems, setProblems] = useState<ConfigProblem[] | null>(null);
  const [refused, setRefused] = useState<string | null>(null);
  const [looking, setLooking] = useState(false);
  const [data, setData] = useState<NewJob | null>(null);
  const [found, setFound] = useState<DryRun | null>(null);
  const [place, setPlace] = useState<{ line: number; column: number } | null>(null);
  const job = (): NewJob => ({
    ...(like === null ? { config } : { like }),
    ...(name ? { name } : {}),
    set: key ? { ...set, [key]: value } : set,
  });
  const text = JSON.stringify(job());

  useEffect(() => {
    if (like !== null)
      read<Detail>(runPath(like)).then(
        (run) => setOld(run.config),
        (error: Error) => setRefused(error.message),
      );
    if (of !== null) {
      read<JobConfig>(`/api/queue/${of}/config`).then(
        ({ config, set: { name, output_dir: _, ...set } }) => {
          setConfig(config);
          setName(name ?? "");
          setSet(set);
        },
        (error: Error) => setRefused(error.message),
      );
    }
  }, [like, of]);

  useEffect(() => {
    let ended = false;
    setFound(null);
    const look = async () => {
      try {
        const asked = await send<Asked<{ problems: ConfigProblem[] }>>("POST", "/api/check", job());
        if (ended) return;
        setChecked(text);
        setProblems(asked?.found?.problems ?? null);
        setRefused(asked?.error ?? null);
      } catch (error) {
        if (ended) return;
        if (error instanceof Refused && error.status === 429) timer = setTimeout(look, PAUSE);
        else {
          setProblems(null);
          setRefused((error as Error).message);
        }
      }
    };
    let timer = setTimeout(look, PAUSE);
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [text]);

  const dryRun = async () => {
    setLooking(true);
    try {
      const asked = await send<Asked<DryRun>>("POST", "/api/dry-run", job());
      setFound(asked?.found ?? null);
      setRefused(asked?.error ?? null);
    } catch (error) {
      setRefused((error as Error).message);
    }
    setLooking(false);
  };
  const add = async () => {
    try {
      await send("POST", "/api/queue", job());
      localStorage.removeItem(DRAFT);
      location.hash = "#/queue";
    } catch (error) {
      setRefused((error as Error).message);
    }
  };
  const type = (text: string) => {
    setConfig(text);
    localStorage.setItem(DRAFT, text);
  };
  const wrong = checked !== text || problems?.length !== 0;
  return (
    <main>
      <p class="crumb">
        <a href="#/queue">Queue</a>
      </p>
      <h1>{like === null ? "New run" : `Duplicate ${like}`}</h1>
      {Object.keys(set).length > 0 && (
        <p class="note">
          As in job {of}:{" "}
          <code>
            {Object.entries(set)
              .map(([key, value]) => `${key}=${value}`)
              .join("  ")}
          </code>
        </p>
      )}
      <section>
        <div class="fields">
          <label>
            Name
            <input
              type="text"
              value={name}
              placeholder={like ?? "from the config"}
              onInput={(event) => setName(event.currentTarget.value)}
            />
          </label>
          <span />
          <label>
            Key to change
            <input
              type="text"
              list="keys"
              value={key}
              placeholder="train.learning_rate"
              spellcheck={false}
              onInput={(event) => setKey(event.currentTarget.value.trim())}
            />
            <datalist id="keys">
              {keysOf(like === null ? config : old).map((each) => (
                <option key={each} value={each} />
              ))}
            </datalist>
          </label>
          <label>
            New value
            <input type="text" value={value} spellcheck={false} onInput={(event) => setValue(event.currentTarget.value)} />
          </label>
        </div>
      </section>
      {like === null && <Editor text={config} onText={type} problems={problems ?? []} place={place} />}
      <div id="problems" role="status">
        {problems?.length === 0 && <p class="note">The config is valid.</p>}
        <ul class="problems">
          {problems?.map((problem) => {
            const { source, line, column, message, help } = problem;
            const text = (
              <>
                <b>
                  {source}:{line}:{column}
                </b>{" "}
                {message}
                {help && <span class="note"> ({help})</span>}
              </>
            );
            // A key of `--set` and the config of another run have no place in this text.
            const isHere = source === "config" && like === null;
            return (
              <li key={`${source}-${line}-${column}-${message}`}>
                {isHere ? (
                  <button type="button" onClick={() => setPlace({ line, column })}>
                    {text}
                  </button>
                ) : (
                  <p class="problem">{text}</p>
                )}
              </li>
            );
          })}
        </ul>
      </div>
      {refused && (
        <pre class="problem" role="alert" tabIndex={0}>
          {refused}
        </pre>
      )}
      <div class="tools">
        <button type="button" disabled={wrong || looking} onClick={dryRun}>
          {looking ? "Running …" : "Dry run"}
        </button>
        <button type="button" disabled={wrong} onClick={() => setData(job())}>
          Show the data
        </button>
        <button type="button" disabled={wrong} onClick={add}>
          Add to the queue
        </button>
      </div>
      {found && <Found found={found} />}
      {data && <DataPart key={JSON.stringify(data)} job={data} />}
    </main>
  );
}

function Found({ found }: { found: DryRun }) {
  return (
    <Section title="Dry run">
      {found.advice.length > 0 && (
        <div class="problem" role="alert">
          It needs more memory than is available. These settings reduce it, the most effective first:
          <ul>
            {found.advice.map((advice) => (
              <li key={advice}>{advice}</li>
            ))}
          </ul>
        </div>
      )}
      <p>
        {found.environment.device}; {found.environment.model}; {whole(found.trained_parameters)} trainable parameters.{" "}
        {whole(found.max_steps)} steps take about {duration(found.estimated_seconds)}, without evaluations and checkpoints.
      </p>
      <p class="note">{found.environment.data}</p>
      <MemoryPart estimate={found.memory_estimate} plan={found.memory_plan} />
    </Section>
  );
}
