// Descriptions of the events of a run.
import type { RunEvent } from "./api";
import { bytes, number } from "./format";

const count = (event: RunEvent, key: string) => Number(event.record?.[key] ?? 0);
const has = (event: RunEvent, key: string) => typeof event.record?.[key] === "number";

/** A short label for a mark on the curves; null if the event is not marked. */
export function mark(event: RunEvent): string | null {
  switch (event.kind) {
    case "skipped":
      return "skipped";
    case "rolled_back":
      return "rolled back";
    case "resumed":
      return "resumed";
    case "restarted":
      return "restarted after a fault";
    case "streaming":
      return "blocks swapped";
    case "out_of_memory":
      if (has(event, "micro_batch")) return `micro-batch ${count(event, "micro_batch")}`;
      return has(event, "offloaded") ? "offloaded" : "out of memory";
    case "placement":
      if (count(event, "mismatched") > 0) return "damaged copy";
      return count(event, "on_host") > 0 ? "stayed on host" : "copy retried";
    default:
      return null;
  }
}

const many = (number: number, what: string) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

const seen = (event: RunEvent) => ((event.record?.["seen"] ?? []) as unknown[]).length;

/** A description as a sentence. */
export function sentence(event: RunEvent): string {
  switch (event.kind) {
    case "skipped": {
      const tensors = (event.record?.["tensors"] ?? []) as { name: string }[];
      const [first] = tensors;
      const others = tensors.length - 1 + count(event, "further_tensors");
      const where = first ? ` The gradient of ${first.name}${others > 0 ? ` and ${others} more` : ""} is not finite.` : "";
      return `Skipped, with a loss of ${event.record?.["loss"]} and a gradient norm of ${event.record?.["grad_norm"]} (${event.record?.["batch"]}).${where}`;
    }
    case "rolled_back":
      return `Back from step ${count(event, "from_step").toLocaleString("en")} to the checkpoint of this step, after ${many(seen(event), "skipped step")}.`;
    case "resumed": {
      const changes = (event.record?.["changes"] ?? []) as { key: string; before: unknown; now: unknown }[];
      const told = changes.map(({ key, before, now }) => `${key} ${JSON.stringify(before)} → ${JSON.stringify(now)}`);
      return `Resumed with another config: ${told.join(", ")}.`;
    }
    case "learning_rate": {
      const rate = event.record?.["learning_rate"];
      const what = typeof rate === "number" ? `A learning rate of ${number(rate, 2)} is suggested` : "No learning rate can be told";
      return `${what}: ${event.record?.["reason"]}.`;
    }
    case "restarted":
      return `A page fault on the GPU had ended the run; it goes on from here (restart ${count(event, "restart")}).`;
    case "streaming":
      return `Block swapping starts: ${bytes(count(event, "host_bytes") + count(event, "disk_bytes"))} of blocks share ${bytes(count(event, "ring_bytes"))} of buffers on the device.`;
    case "out_of_memory":
      if (has(event, "micro_batch")) return `Out of memory: repeated with micro-batches of ${many(count(event, "micro_batch"), "sample")}.`;
      if (has(event, "offloaded")) return `Out of memory: repeated with ${bytes(count(event, "offloaded"))} offloaded.`;
      return "Out of memory: repeated after emptying caches.";
    case "placement": {
      const parts = [
        count(event, "tensors") > 0 && `${many(count(event, "tensors"), "tensor")} needed another attempt`,
        count(event, "mismatched") > 0 && `${count(event, "mismatched")} arrived damaged`,
        count(event, "on_host") > 0 && `${count(event, "on_host")} stayed on the host`,
        count(event, "blocks") > 0 && `swapped blocks were copied again ${many(count(event, "blocks"), "time")}`,
      ];
      return `${parts.filter(Boolean).join(", ")}.`;
    }
    default:
      return event.kind.replaceAll("_", " ");
  }
}
