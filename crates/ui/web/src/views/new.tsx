// A new run, or one like another with one key changed; errors are shown while the user types.
import { useEffect, useState } from "preact/hooks";
import { type Detail, type JobConfig, type NewJob, read, runPath } from "../api";
import { Problem, useTitle } from "../widgets";
import { Found, Problems, useChecked } from "./checked";
import { DataPart } from "./data";
import { Editor } from "./editor";
import { Wizard } from "./wizard";

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

interface NewProps {
  like: string | null;
  of: string | null;
  /** The data that it begins with. */
  data: string | null;
  isWhole: boolean;
}

export function NewView({ like, of, data, isWhole }: NewProps) {
  return like === null && of === null ? <Wizard isWhole={isWhole} data={data} /> : <Again like={like} of={of} />;
}

/** A run or a job once more, with what is to be different. */
function Again({ like, of }: { like: string | null; of: string | null }) {
  useTitle("New run");
  const [config, setConfig] = useState("");
  /** What a job overrides. */
  const [set, setSet] = useState<Record<string, string>>({});
  const [old, setOld] = useState("");
  const [name, setName] = useState("");
  const [key, setKey] = useState("");
  const [value, setValue] = useState("");
  const [unread, setUnread] = useState<string | null>(null);
  const [data, setData] = useState<NewJob | null>(null);
  const [place, setPlace] = useState<{ line: number; column: number } | null>(null);
  const job: NewJob = {
    ...(like === null ? { config } : { like }),
    ...(name ? { name } : {}),
    set: key ? { ...set, [key]: value } : set,
  };
  const checked = useChecked(job);

  useEffect(() => {
    if (like !== null)
      read<Detail>(runPath(like)).then(
        (run) => setOld(run.config),
        (error: Error) => setUnread(error.message),
      );
    if (of !== null) {
      read<JobConfig>(`/api/queue/${of}/config`).then(
        ({ config, set: { name, output_dir: _, ...set } }) => {
          setConfig(config);
          setName(name ?? "");
          setSet(set);
        },
        (error: Error) => setUnread(error.message),
      );
    }
  }, [like, of]);
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
      {like === null && <Editor text={config} onText={setConfig} problems={checked.problems ?? []} place={place} />}
      <Problem text={unread} />
      <Problems checked={checked} onPlace={like === null ? (line, column) => setPlace({ line, column }) : null} />
      <div class="tools">
        <button type="button" disabled={!checked.isFine || checked.looking} onClick={checked.dryRun}>
          {checked.looking ? "Running …" : "Dry run"}
        </button>
        <button type="button" disabled={!checked.isFine} onClick={() => setData(job)}>
          Show the data
        </button>
        <button type="button" class="primary" disabled={!checked.isFine} onClick={() => checked.add(() => {})}>
          Add to the queue
        </button>
      </div>
      {checked.found && <Found found={checked.found} />}
      {data && <DataPart key={JSON.stringify(data)} job={data} />}
    </main>
  );
}
