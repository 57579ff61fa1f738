// What happened in a run, in words.
import type { RunEvent } from "./api";
import { bytes } from "./format";

const count = (event: RunEvent, key: string) => Number(event.record?.[key] ?? 0);
const has = (event: RunEvent, key: string) => typeof event.record?.[key] === "number";

/** A word or two beside a mark on the curves; nothing for what is not marked. */
export function mark(event: RunEvent): string | null {
  switch (event.kind) {
    case "skipped":
      return "skipped";
    case "rolled_back":
      return "back";
    case "resumed":
      return "resumed";
    case "streaming":
      return "blocks swapped";
    case "out_of_memory":
      if (has(event, "micro_batch")) return `cut to ${count(event, "micro_batch")}`;
      return has(event, "offloaded") ? "offloaded" : "memory full";
    case "placement":
      if (count(event, "mismatched") > 0) return "arrived wrong";
      return count(event, "on_host") > 0 ? "stayed on host" : "second try";
    default:
      return null;
  }
}

const many = (number: number, what: string) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

/** A sentence. */
export function sentence(event: RunEvent): string {
  switch (event.kind) {
    case "streaming":
      return `Blocks are swapped from here on: ${bytes(count(event, "host_bytes") + count(event, "disk_bytes"))} go through a ring of ${bytes(count(event, "ring_bytes"))}.`;
    case "out_of_memory":
      if (has(event, "micro_batch")) return `Out of memory: repeated with ${many(count(event, "micro_batch"), "sample")} at a time.`;
      if (has(event, "offloaded")) return `Out of memory: repeated with ${bytes(count(event, "offloaded"))} offloaded.`;
      return "Out of memory: repeated after caches were emptied.";
    case "placement": {
      const parts = [
        count(event, "tensors") > 0 && `${many(count(event, "tensors"), "tensor")} needed another try`,
        count(event, "mismatched") > 0 && `${count(event, "mismatched")} arrived wrong`,
        count(event, "on_host") > 0 && `${count(event, "on_host")} stayed on the host`,
        count(event, "blocks") > 0 && `swapped blocks were copied again ${many(count(event, "blocks"), "time")}`,
      ];
      return `${parts.filter(Boolean).join(", ")}.`;
    }
    default:
      return event.kind.replaceAll("_", " ");
  }
}
