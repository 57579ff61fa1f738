// The current state of the GPUs of this machine.
import { useEffect, useState } from "preact/hooks";
import { type Gpu, type GpuMemory, read } from "../api";
import { bytes, UNKNOWN, whole } from "../format";
import { Figure, Section } from "../widgets";

/** The polling interval while the page is visible, in milliseconds. */
const PERIOD = 2000;

function useGpus(): Gpu[] {
  const [gpus, setGpus] = useState<Gpu[]>([]);
  useEffect(() => {
    let ended = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const look = async () => {
      clearTimeout(timer);
      if (document.visibilityState === "visible") {
        // Outdated values are not shown as current ones.
        const found = await read<{ gpus: Gpu[] }>("/api/gpus").catch(() => ({ gpus: [] }));
        if (ended) return;
        setGpus(found.gpus);
      }
      clearTimeout(timer);
      timer = setTimeout(look, PERIOD);
    };
    const seen = () => void look();
    document.addEventListener("visibilitychange", seen);
    void look();
    return () => {
      ended = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, []);
  return gpus;
}

function MemoryOf({ name, memory }: { name: string; memory: GpuMemory }) {
  const { used, total } = memory;
  const known = used !== null && total !== null && total > 0;
  return (
    <div class={known ? "figure double" : "figure double none"}>
      <dt>{name}</dt>
      <dd>
        {used === null && total === null ? UNKNOWN : `${bytes(used)} of ${bytes(total)}`}
        {known && <meter min={0} max={total} value={Math.min(used, total)} aria-label={`${name} in use`} />}
      </dd>
    </div>
  );
}

const degrees = (value: number | null) => (value === null ? UNKNOWN : `${whole(value)} °C`);

/** All GPUs; nothing if there are none or none can be read. */
export function Gpus() {
  const gpus = useGpus();
  if (gpus.length === 0) return null;
  return (
    <Section title={gpus.length === 1 ? "GPU" : "GPUs"}>
      {gpus.map((gpu) => (
        <article class="gpu" key={gpu.card} aria-label={gpu.card}>
          <p class="note">
            {[gpu.name, gpu.card, gpu.slot].filter(Boolean).join(" · ")}
            {gpu.asleep && " · suspended, and not read so as not to wake it"}
          </p>
          {!gpu.asleep && (
            <dl class="figures">
              <MemoryOf name="GPU memory (VRAM)" memory={gpu.vram} />
              <MemoryOf name="Host memory (GTT)" memory={gpu.gtt} />
              <Figure name="Utilisation" value={gpu.busy === null ? UNKNOWN : `${gpu.busy} %`} />
              <Figure name="Clock" value={gpu.clock === null ? UNKNOWN : `${whole(gpu.clock / 1e6)} MHz`} />
              <Figure name="Power" value={gpu.watts === null ? UNKNOWN : `${whole(gpu.watts)} W`} />
              <Figure name="Temperature" value={degrees(gpu.temperature)} />
              <Figure name="Hotspot temperature" value={degrees(gpu.hottest)} />
            </dl>
          )}
          {gpu.runs.map((share) => (
            <p class="note" key={share.pid}>
              {share.run}, process {share.pid}: {bytes(share.vram)} VRAM, {bytes(share.gtt)} GTT
            </p>
          ))}
        </article>
      ))}
    </Section>
  );
}
