// How a model would be trained on a folder: sizes, clips, and what cannot be used, as the trainer says.
import { useState } from "preact/hooks";
import { type Asked, type FoundModels, read, send } from "../api";
import { Problem } from "../widgets";
import type { Found, TrainedMedium } from "./data";

const SIZES = [256, 512, 768, 1024, 1280];
/** How many media the trainer lists at most. */
const MOST = 10_000;

export function Trained({ path, onFound }: { path: string; onFound: (found: ReadonlyMap<string, TrainedMedium>) => void }) {
  const [models, setModels] = useState<FoundModels["models"] | null>(null);
  const [model, setModel] = useState("");
  const [size, setSize] = useState(512);
  const [said, setSaid] = useState<string | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const open = async () => {
    if (models !== null) return;
    try {
      const asked = await read<Asked<FoundModels>>("/api/models");
      const found = asked.found?.models.filter(({ makes }) => makes === "image" || makes === "video") ?? [];
      setModels(found);
      setModel(found[0]?.name ?? "");
      setProblem(asked.error);
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  const look = async () => {
    setProblem(null);
    setSaid("Reading the data …");
    try {
      // The editor of configs is loaded for this.
      const { begin, withKeys, written } = await import("../recipes");
      const goal = models?.find(({ name }) => name === model)?.makes === "video" ? "video" : "image";
      const config = withKeys(begin(goal, model, {}), {
        "data.path": written(path),
        "data.dataset": null,
        "data.resolution": String(size),
      });
      const asked = await send<Asked<Found>>("POST", "/api/data", { config, set: {}, rows: MOST });
      const found = asked?.found?.media;
      if (found) onFound(new Map(found.media.map((medium) => [medium.file, { ...medium, fps: found.fps }])));
      setProblem(asked?.error ?? null);
      const wrong = found?.media.filter((medium) => medium.problem !== null).length ?? 0;
      setSaid(found ? (wrong === 0 ? "All can be used." : `${wrong} cannot be used.`) : null);
    } catch (error) {
      setSaid(null);
      setProblem((error as Error).message);
    }
  };
  return (
    <details class="tool" onToggle={(event) => event.currentTarget.open && void open()}>
      <summary>How they are trained: sizes, clips, what cannot be used</summary>
      {models?.length === 0 && <p class="note">No image or video model was found in the caches and the allowed folders.</p>}
      <div class="controls">
        <label>
          Model{" "}
          <select value={model} disabled={!models?.length} onChange={(event) => setModel(event.currentTarget.value)}>
            {models?.map(({ name }) => (
              <option key={name} value={name}>
                {name.split("/").at(-1)}
              </option>
            ))}
          </select>
        </label>
        <label>
          Size{" "}
          <select value={size} onChange={(event) => setSize(Number(event.currentTarget.value))}>
            {SIZES.map((each) => (
              <option key={each} value={each}>
                {each}
              </option>
            ))}
          </select>
        </label>
        <button type="button" disabled={model === "" || said === "Reading the data …"} onClick={look}>
          Look
        </button>
        <span class="note" role="status">
          {said}
        </span>
      </div>
      <Problem text={problem} />
    </details>
  );
}
