// Clips that play in step: one clock for all of them.
import { type Signal, signal } from "@preact/signals";

/** Whether the user prefers pages without animation. */
export const STILL = matchMedia("(prefers-reduced-motion: reduce)").matches;
/** How far a clip may be from the clock, in seconds, before it is moved there. */
const TOLERANCE = 0.08;
/** How often the clips are compared with the clock, in milliseconds. */
const PERIOD = 250;

export class Players {
  readonly playing: Signal<boolean> = signal(!STILL);
  /** The position in the longest clip, in seconds. */
  readonly at: Signal<number> = signal(0);
  /** The length of the longest clip, in seconds; 0 while none is loaded. */
  readonly length: Signal<number> = signal(0);

  private readonly clips = new Set<HTMLVideoElement>();
  private timer: ReturnType<typeof setInterval> | undefined;
  /** The clock: this many seconds at that moment of `performance.now()`. */
  private seconds = 0;
  private since = performance.now();

  /** Lets a clip follow the clock until the returned function is called. */
  follow(clip: HTMLVideoElement): () => void {
    this.clips.add(clip);
    const ready = () => {
      this.measure();
      this.align(clip);
    };
    for (const event of ["loadedmetadata", "durationchange", "canplay"]) clip.addEventListener(event, ready);
    ready();
    this.timer ??= setInterval(() => this.tick(), PERIOD);
    return () => {
      for (const event of ["loadedmetadata", "durationchange", "canplay"]) clip.removeEventListener(event, ready);
      clip.pause();
      this.clips.delete(clip);
      this.measure();
      if (this.clips.size > 0) return;
      clearInterval(this.timer);
      this.timer = undefined;
    };
  }

  play(playing: boolean) {
    this.set(this.now());
    this.playing.value = playing;
    this.tick();
  }

  /** Moves all clips to a position. */
  seek(seconds: number) {
    this.set(seconds);
    this.tick();
  }

  private set(seconds: number) {
    this.seconds = seconds;
    this.since = performance.now();
  }

  private now(): number {
    return this.seconds + (this.playing.value ? (performance.now() - this.since) / 1000 : 0);
  }

  private measure() {
    this.length.value = Math.max(0, ...[...this.clips].map((clip) => clip.duration).filter(Number.isFinite));
  }

  private tick() {
    const length = this.length.value;
    this.at.value = length > 0 ? this.now() % length : 0;
    for (const clip of this.clips) this.align(clip);
  }

  private align(clip: HTMLVideoElement) {
    // A recording may have no length before it has played once.
    if (clip.readyState >= HTMLMediaElement.HAVE_METADATA && Number.isFinite(clip.duration) && !clip.seeking) {
      const wanted = this.now() % clip.duration;
      const apart = Math.abs(clip.currentTime - wanted);
      // The end of a clip is beside its beginning.
      if (Math.min(apart, clip.duration - apart) > TOLERANCE) clip.currentTime = wanted;
    }
    // A browser may refuse to play, and a clip that is taken away cannot.
    if (this.playing.value === clip.paused) this.playing.value ? void clip.play().catch(() => {}) : clip.pause();
  }
}
