// The memory estimate of a step, and where the parts of the model are kept.
import { bytes, bytesLike, UNKNOWN } from "../format";

const PARTS: [string, string][] = [
  ["weights", "weights"],
  ["optimizer", "optimizer state"],
  ["averages", "averaged weights (EMA)"],
  ["gradients", "gradients"],
  ["activations", "activations"],
  ["logits", "the loss"],
];

interface Plan {
  blocks?: number;
  streamed?: number[];
  from_file?: number[];
  folder?: string | null;
}

export function MemoryPart({ estimate, plan }: { estimate: Record<string, unknown>; plan: unknown }) {
  const size = (name: string) => (typeof estimate[name] === "number" ? (estimate[name] as number) : null);
  const [peak, free] = [size("peak"), size("free")];
  const most = Math.max(peak ?? 0, ...PARTS.map(([name]) => size(name) ?? 0));
  return (
    <>
      <div class="wide">
        <table class="memory">
          <caption class="hidden">Estimated memory of a step</caption>
          <thead>
            <tr>
              <th scope="col">Memory of a step</th>
              <th scope="col" class="number">
                estimated
              </th>
              <td class="extra" />
            </tr>
          </thead>
          <tbody>
            {PARTS.filter(([name]) => (size(name) ?? 0) > 0).map(([name, label]) => (
              <tr key={name}>
                <th scope="row">{label}</th>
                <td class="number">{bytesLike(most, size(name))}</td>
                <td class="extra">
                  <meter aria-label={label} max={most} value={size(name) ?? 0} />
                </td>
              </tr>
            ))}
            <tr>
              <th scope="row">peak, of {free === null ? `${UNKNOWN} free memory` : `${bytes(free)} free`}</th>
              <td class="number">
                <b>{bytesLike(most, peak)}</b>
              </td>
              <td class="extra">
                {peak !== null && free !== null && <meter aria-label="peak, of what is free" max={free} value={peak} />}
              </td>
            </tr>
          </tbody>
        </table>
      </div>
      {plan ? <Placed plan={plan as Plan} /> : <p class="note">The whole model stays on the device.</p>}
    </>
  );
}

function Placed({ plan }: { plan: Plan }) {
  const { blocks = 0, streamed = [], from_file = [] } = plan;
  const inMemory = streamed.filter((block) => !from_file.includes(block));
  return (
    <>
      <p>
        {blocks - streamed.length} of {blocks} blocks stay on the device
        {inMemory.length > 0 && `, ${inMemory.length} are copied from host memory in each pass (${ranges(inMemory)})`}
        {from_file.length > 0 &&
          `, ${from_file.length} are read from files${plan.folder ? ` in ${plan.folder}` : ""} (${ranges(from_file)})`}
        .
      </p>
      <details>
        <summary>Full plan</summary>
        <pre tabIndex={0}>{JSON.stringify(plan, null, 2)}</pre>
      </details>
    </>
  );
}

/** `3-7, 9`. */
export function ranges(numbers: number[]): string {
  const parts: [number, number][] = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const last = parts.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else parts.push([number, number]);
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(", ");
}
