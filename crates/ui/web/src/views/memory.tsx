// What a step is expected to take of the memory, and what lives where.
import { bytes, UNKNOWN } from "../format";

const PARTS: [string, string][] = [
  ["weights", "weights"],
  ["optimizer", "moments of the optimizer"],
  ["averages", "averages of the weights"],
  ["gradients", "gradients"],
  ["activations", "activations"],
  ["logits", "the loss"],
];

interface Plan {
  profile?: string | null;
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
          <caption class="hidden">Memory of a step, as it is expected</caption>
          <thead>
            <tr>
              <th scope="col">Memory of a step</th>
              <th scope="col" class="number">
                expected
              </th>
              <td class="extra" />
            </tr>
          </thead>
          <tbody>
            {PARTS.filter(([name]) => (size(name) ?? 0) > 0).map(([name, label]) => (
              <tr key={name}>
                <th scope="row">{label}</th>
                <td class="number">{bytes(size(name))}</td>
                <td class="extra">
                  <meter aria-label={label} max={most} value={size(name) ?? 0} />
                </td>
              </tr>
            ))}
            <tr>
              <th scope="row">most at a time</th>
              <td class="number">
                <b>{bytes(peak)}</b>
              </td>
              <td class="extra">of {free === null ? `${UNKNOWN} free memory` : `${bytes(free)} that are free`}</td>
            </tr>
          </tbody>
        </table>
      </div>
      {plan ? <Placed plan={plan as Plan} /> : <p class="note">All of the model stays on the device: the config asks for no other plan.</p>}
    </>
  );
}

function Placed({ plan }: { plan: Plan }) {
  const { blocks = 0, streamed = [], from_file = [] } = plan;
  const inMemory = streamed.filter((block) => !from_file.includes(block));
  return (
    <>
      <p>
        {plan.profile ? `Profile ${plan.profile}. ` : ""}
        {blocks - streamed.length} of {blocks} blocks stay on the device
        {inMemory.length > 0 && `, ${inMemory.length} come from the host's memory in each pass (${ranges(inMemory)})`}
        {from_file.length > 0 && `, ${from_file.length} from files${plan.folder ? ` in ${plan.folder}` : ""} (${ranges(from_file)})`}.
      </p>
      <details>
        <summary>The plan in full</summary>
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
