// Files of text: rows as a model sees them, before there is a run.
import { useEffect, useState } from "preact/hooks";
import { type Asked, type FolderContent, type FoundModels, read } from "../api";
import { bytes } from "../format";
import { Problem } from "../widgets";
import { DataPart } from "./data";

/** A model from nothing, which reads bytes. */
const NONE = "";
const LENGTHS = [128, 256, 512, 1024, 2048, 4096];

export function TextData({ path, files }: { path: string; files: FolderContent["files"] }) {
  const [file, setFile] = useState<string>(files.length === 1 ? files[0]!.path : path);
  const [models, setModels] = useState<string[]>([]);
  const [model, setModel] = useState<string | null>(null);
  const [length, setLength] = useState(512);
  const [config, setConfig] = useState<string | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    let ended = false;
    read<Asked<FoundModels>>("/api/models").then(
      (asked) => {
        if (ended) return;
        const found = asked.found?.models.filter(({ makes }) => makes === "chat" || makes === "text") ?? [];
        setModels(found.map(({ name }) => name));
        setModel(found[0]?.name ?? NONE);
      },
      (error: Error) => !ended && setProblem(error.message),
    );
    return () => {
      ended = true;
    };
  }, []);
  useEffect(() => {
    if (model === null) return;
    let ended = false;
    // The editor of configs is loaded for this.
    import("../recipes").then(({ begin, freshText, withKeys, written }) => {
      const text = model === NONE ? freshText() : begin("chat", model, {});
      const keys = { "data.path": written(file), "data.dataset": null, "data.block_size": String(length) };
      if (!ended) setConfig(withKeys(text, keys));
    });
    return () => {
      ended = true;
    };
  }, [model, file, length]);
  return (
    <>
      <Problem text={problem} />
      <div class="controls">
        <label>
          File{" "}
          <select value={file} onChange={(event) => setFile(event.currentTarget.value)}>
            {files.length > 1 && <option value={path}>all files</option>}
            {files.map((each) => (
              <option key={each.path} value={each.path}>
                {each.name} ({bytes(each.bytes)})
              </option>
            ))}
          </select>
        </label>
        <label>
          As read by{" "}
          <select value={model ?? NONE} onChange={(event) => setModel(event.currentTarget.value)}>
            {models.map((name) => (
              <option key={name} value={name}>
                {name.split("/").at(-1)}
              </option>
            ))}
            <option value={NONE}>a small model from nothing</option>
          </select>
        </label>
        <label>
          At most{" "}
          <select value={length} onChange={(event) => setLength(Number(event.currentTarget.value))}>
            {LENGTHS.map((tokens) => (
              <option key={tokens} value={tokens}>
                {tokens} tokens
              </option>
            ))}
          </select>
        </label>
      </div>
      {config !== null && <DataPart key={config} job={{ config, set: {} }} />}
    </>
  );
}
