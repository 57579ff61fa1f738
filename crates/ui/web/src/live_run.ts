// A run, followed live. What is shown of it are signals; records change the curves in place and put them anew.
import { type Signal, signal } from "@preact/signals";
import { type Detail, type Metrics, type Overview, read, runPath, type Samples } from "./api";
import { type Seen, seenAt, timeLeft } from "./format";
import { listen } from "./live";
import { saw } from "./notify";
import { follow, type Kept, keep } from "./series";

/** How many steps with samples are shown at first, and at most. */
const FEW_SAMPLES = 20;
const MAX_SAMPLES = 200;
/** The delay before a run that is not there yet is looked for again, in milliseconds. */
const PAUSE = 2000;

export class LiveRun {
  readonly detail: Signal<Detail | null> = signal(null);
  /** Why nothing is shown. */
  readonly problem: Signal<string | null> = signal(null);
  /** Why there is no connection. */
  readonly offline: Signal<string | null> = signal(null);
  readonly gone = signal(false);
  readonly samples: Signal<Samples | null> = signal(null);
  readonly kept: Signal<Kept | null> = signal(null);
  /** The requested part of the curves, in more detail. */
  readonly part: Signal<Kept | null> = signal(null);
  /** The time left in seconds. */
  readonly left: Signal<number | null> = signal(null);

  private seen: Seen[] = [];
  private stopListening = () => {};
  private retry: ReturnType<typeof setTimeout> | undefined;
  private ended = false;
  private wantedPart = "";
  private sampleCount = FEW_SAMPLES;

  constructor(readonly name: string) {
    void this.start();
  }

  close() {
    this.ended = true;
    clearTimeout(this.retry);
    this.stopListening();
  }

  /** Loads the curves of a range of steps in more detail than those of the whole run. */
  async show(range: [number, number] | null) {
    const wanted = range ? `?from=${range[0]}&to=${range[1]}` : "";
    if (wanted === this.wantedPart) return;
    this.wantedPart = wanted;
    this.part.value = null;
    if (!range) return;
    const metrics = await read<Metrics>(runPath(this.name, `/curves${wanted}`)).catch(() => null);
    if (metrics && !this.ended && wanted === this.wantedPart) this.part.value = keep(metrics);
  }

  hasMoreSamples(): boolean {
    const found = this.samples.value;
    return this.sampleCount === FEW_SAMPLES && found !== null && found.steps.length > found.sets.length;
  }

  showAllSamples() {
    this.sampleCount = MAX_SAMPLES;
    void this.loadSamples();
  }

  private async start(): Promise<void> {
    this.stopListening();
    try {
      const [detail, metrics] = await Promise.all([read<Detail>(runPath(this.name)), read<Metrics>(runPath(this.name, "/curves"))]);
      if (this.ended) return;
      this.detail.value = detail;
      this.problem.value = null;
      this.kept.value = keep(metrics);
      void this.loadSamples();
      this.listen(metrics);
    } catch (error) {
      if (this.ended) return;
      this.problem.value = (error as Error).message;
      // A run that the queue has just started has no folder yet.
      this.retry = setTimeout(() => this.start(), PAUSE);
    }
  }

  private listen({ inode, offset }: Metrics) {
    const url = (last: string | null) => {
      const [file, at] = last?.split("-") ?? [inode, offset];
      return runPath(this.name, `/stream?inode=${file}&offset=${at}`);
    };
    this.stopListening = listen({
      url,
      problem: (text) => {
        this.offline.value = text;
      },
      on: {
        state: (data) => this.see(JSON.parse(data) as Overview),
        records: (data) => this.add(JSON.parse(data) as Record<string, unknown>[]),
        anew: () => void this.start(),
        gone: () => {
          this.stopListening();
          this.gone.value = true;
        },
      },
    });
  }

  private see(overview: Overview) {
    saw([overview]);
    const now = performance.now() / 1000;
    this.seen = seenAt(this.seen, overview.latest.step, now);
    const isRunning = overview.state === "running" && overview.max_steps !== null;
    this.left.value = isRunning ? timeLeft(this.seen, overview.max_steps!, now) : null;
    const before = this.detail.value;
    if (!before) return;
    this.detail.value = { ...before, error: undefined, process: undefined, stopping: undefined, ...overview };
    // The files in the folder change with the state: the summary, the memory estimate.
    if (before.state !== overview.state || before.facts === null) void this.loadDetail();
  }

  private add(records: Record<string, unknown>[]) {
    if (records.some((record) => record["kind"] === "samples")) void this.loadSamples();
    const kept = this.kept.value;
    if (!kept) return;
    if (follow(kept, records)) this.kept.value = { ...kept };
    else void this.start();
  }

  private async loadDetail() {
    const found = await read<Detail>(runPath(this.name)).catch(() => null);
    if (found && !this.ended) this.detail.value = found;
  }

  private async loadSamples() {
    const found = await read<Samples>(runPath(this.name, `/samples?count=${this.sampleCount}`)).catch(() => null);
    if (found && !this.ended) this.samples.value = found;
  }
}
