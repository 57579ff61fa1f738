// A new run, or one like another with something changed; errors are shown while the user types.
import { useEffect, useState } from "preact/hooks";
import { type Detail, type JobConfig, type NewJob, read, runPath } from "../api";
import { withKeys } from "../recipes";
import { Problem, useTitle } from "../widgets";
import { Actions, Found, Problems, useChecked } from "./checked";
import { DataPart } from "./data";
import { Differences } from "./diff";
import { Editor } from "./editor";
import { Wizard } from "./wizard";

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

/** A run or a job once more: its config, to be changed, with what is different. */
function Again({ like, of }: { like: string | null; of: string | null }) {
  useTitle("New run");
  const [config, setConfig] = useState("");
  /** The config as it was; null until it is read. */
  const [old, setOld] = useState<string | null>(null);
  /** What a job overrides. */
  const [set, setSet] = useState<Record<string, string>>({});
  const [name, setName] = useState("");
  const [unread, setUnread] = useState<string | null>(null);
  const [data, setData] = useState<NewJob | null>(null);
  const [place, setPlace] = useState<{ line: number; column: number } | null>(null);
  const job: NewJob = { config, ...(like === null ? {} : { like }), ...(name ? { name } : {}), set };
  const checked = useChecked(job);
  const begin = (text: string) => {
    setOld(text);
    setConfig(text);
  };

  useEffect(() => {
    if (like !== null)
      read<Detail>(runPath(like)).then(
        (run) => begin(withKeys(run.config, { output_dir: null })),
        (error: Error) => setUnread(error.message),
      );
    if (of !== null) {
      read<JobConfig>(`/api/queue/${of}/config`).then(
        ({ config, set: { name, output_dir: _, ...set } }) => {
          begin(config);
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
        </div>
      </section>
      {old !== null && <Differences before={old} after={config} />}
      <Problem text={unread} />
      <Problems checked={checked} onPlace={(line, column) => setPlace({ line, column })} />
      <Actions checked={checked} isHere onData={() => setData(job)} onAdded={() => {}} />
      {checked.found && <Found found={checked.found} />}
      {data && <DataPart key={JSON.stringify(data)} job={data} />}
      {old !== null && <Editor text={config} onText={setConfig} problems={checked.problems ?? []} place={place} />}
    </main>
  );
}
