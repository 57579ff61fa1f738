// A folder of pictures and videos that is open: its captions, what is known of its pictures, and what was changed.
import { type Signal, signal } from "@preact/signals";
import { type Looked, type Looks, type MediaFolder, type Removal, send, type Trim, type TrimChange, type UnchangedCaption } from "./api";

/** The most captions that one request changes, and about how many letters it has. */
const AT_ONCE = 200;
const MAX_LETTERS = 60_000;
/** How many changes can be undone. */
const MAX_UNDO = 50;

/** A change that can be undone, by the names of files. */
interface Undo {
  what: string;
  captions: { file: string; text: string | null; before: string | null }[];
  /** The part of a video, if it is that which was changed. */
  trim?: { file: string; trim: Trim | null; before: Trim | null };
}

/** What was changed in each folder since the page was loaded. */
const undone = new Map<string, Signal<Undo[]>>();

interface Change {
  medium: number;
  text: string | null;
  before: string | null;
}

export class MediaSet {
  readonly captions: Signal<(string | null)[]>;
  /** The parts of videos that are trained on; null for the whole. */
  readonly trims: Signal<(Trim | null)[]>;
  readonly looks: Signal<ReadonlyMap<number, Looks>> = signal(new Map());
  readonly gone: Signal<ReadonlySet<number>> = signal(new Set());
  /** What is being done. */
  readonly busy: Signal<string | null> = signal(null);
  readonly problem: Signal<string | null> = signal(null);
  readonly undo: Signal<Undo[]>;
  private ended = false;

  constructor(readonly folder: MediaFolder) {
    this.captions = signal(folder.media.map(({ caption }) => caption));
    this.trims = signal(folder.media.map(({ trim }) => trim));
    this.undo = undone.get(folder.path) ?? signal([]);
    undone.set(folder.path, this.undo);
  }

  static async open(path: string): Promise<MediaSet> {
    return new MediaSet((await send<MediaFolder>("POST", "/api/media", { path, only_here: false }))!);
  }

  close() {
    this.ended = true;
  }

  path(medium: number, rest = ""): string {
    return `/api/data/${this.folder.set}/${medium}${rest}`;
  }

  /** Changes captions; returns whether all were changed. */
  async change(what: string, texts: ReadonlyMap<number, string>): Promise<boolean> {
    const changes = [...texts].map(([medium, text]) => ({ medium, text: text.trim(), before: this.captions.value[medium] ?? null }));
    return this.apply(
      what,
      changes.filter(({ text, before }) => text !== (before ?? "")),
      true,
    );
  }

  /** Undoes the last change. */
  async undoLast() {
    const last = this.undo.value.at(-1);
    if (!last) return;
    const places = new Map(this.folder.media.map(({ file }, medium) => [file, medium]));
    if (last.trim) {
      const medium = places.get(last.trim.file);
      this.undo.value = this.undo.value.slice(0, -1);
      if (medium !== undefined) await this.trim(medium, last.trim.before, false);
      return;
    }
    const changes = last.captions.flatMap(({ file, text, before }) => {
      const medium = places.get(file);
      return medium === undefined ? [] : [{ medium, text: before, before: text }];
    });
    this.undo.value = this.undo.value.slice(0, -1);
    await this.apply(`Undo: ${last.what}`, changes, false);
  }

  /** Changes the part of a video that is trained on. */
  async trim(medium: number, trim: Trim | null, isKept = true) {
    const before = this.trims.value[medium] ?? null;
    this.problem.value = null;
    try {
      await send("PUT", this.path(medium, "/trim"), { trim, before } satisfies TrimChange);
    } catch (error) {
      this.problem.value = (error as Error).message;
      return;
    }
    this.trims.value = this.trims.value.with(medium, trim);
    const { file } = this.folder.media[medium]!;
    if (isKept)
      this.undo.value = [...this.undo.value, { what: `part of ${file}`, captions: [], trim: { file, trim, before } }].slice(-MAX_UNDO);
  }

  private async apply(what: string, changes: Change[], isKept: boolean): Promise<boolean> {
    if (changes.length === 0) return true;
    this.problem.value = null;
    const done: Change[] = [];
    const left: UnchangedCaption[] = [];
    try {
      for (let from = 0; from < changes.length; ) {
        this.busy.value = `${what}: ${from} of ${changes.length}`;
        const some = batch(changes, from);
        from += some.length;
        const missed = (await send<UnchangedCaption[]>("PUT", `/api/data/${this.folder.set}/captions`, some)) ?? [];
        left.push(...missed);
        const skipped = new Set(missed.map(({ medium }) => medium));
        done.push(...some.filter(({ medium }) => !skipped.has(medium)));
        this.take(some.filter(({ medium }) => !skipped.has(medium)));
      }
    } catch (error) {
      this.problem.value = (error as Error).message;
    }
    this.busy.value = null;
    const first = left[0];
    if (first) this.problem.value = `${left.length} not changed. ${this.folder.media[first.medium]?.file}: ${first.why}`;
    if (isKept && done.length > 0) {
      const captions = done.map(({ medium, text, before }) => ({ file: this.folder.media[medium]!.file, text, before }));
      this.undo.value = [...this.undo.value, { what, captions }].slice(-MAX_UNDO);
    }
    return left.length === 0 && this.problem.value === null;
  }

  /** Takes captions as they are on the disk now. */
  take(changed: { medium: number; text: string | null }[]) {
    if (changed.length === 0) return;
    const captions = [...this.captions.value];
    for (const { medium, text } of changed) captions[medium] = text;
    this.captions.value = captions;
  }

  async remove(media: number[]) {
    this.problem.value = null;
    try {
      for (const [count, medium] of media.entries()) {
        this.busy.value = `Removing ${count + 1} of ${media.length}`;
        await send("DELETE", this.path(medium), { before: this.captions.value[medium] ?? null } satisfies Removal);
        this.gone.value = new Set([...this.gone.value, medium]);
      }
    } catch (error) {
      this.problem.value = (error as Error).message;
    }
    this.busy.value = null;
  }

  /** Looks at all pictures, for those that are blurred or there twice. */
  async lookOver() {
    const looks = new Map<number, Looks>();
    const total = this.folder.media.length;
    this.problem.value = null;
    try {
      for (let from: number | null = 0; from !== null && !this.ended; ) {
        this.busy.value = `Looking at ${from} of ${total}`;
        const found: Looked = (await send<Looked>("POST", `/api/data/${this.folder.set}/look`, { from }))!;
        for (const look of found.looks) looks.set(look.medium, look);
        from = found.next;
      }
      this.looks.value = looks;
    } catch (error) {
      this.problem.value = (error as Error).message;
    }
    this.busy.value = null;
  }
}

/** The next changes that fit into one request. */
function batch(changes: Change[], from: number): Change[] {
  let letters = 0;
  let to = from;
  while (to < changes.length && to < from + AT_ONCE && (to === from || letters < MAX_LETTERS)) {
    const { text, before } = changes[to]!;
    letters += (text?.length ?? 0) + (before?.length ?? 0);
    to += 1;
  }
  return changes.slice(from, to);
}
