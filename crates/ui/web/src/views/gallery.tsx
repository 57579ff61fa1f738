// Pictures and videos in a grid of which only what is in sight exists, with what is done to many of them.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { lookAlike } from "../captions";
import { byName, bytes, media as inWords, whole } from "../format";
import type { MediaSet } from "../media_set";
import { Confirm, Problem } from "../widgets";
import { Bulk } from "./bulk";
import { Captioner } from "./captioner";
import type { TrainedMedium } from "./data";
import { Lightbox } from "./lightbox";
import { Trained } from "./trained";

/** The size of a cell with what is between two, in pixels; as in the style. */
const CELL_WIDTH = 190;
const NARROW = { window: 760, cell: 162 };
const CELL_HEIGHT = 250;
/** How many rows beyond the window exist. */
const BEYOND = 2;
/** How long the window is still before pictures are asked for, in milliseconds. */
const STILL = 60;
/** Pictures that are less sharp are marked. */
const BLURRED = 60;

const FILTERS = {
  all: "All",
  bare: "Without a caption",
  chosen: "Chosen",
  twice: "Look alike",
  blurred: "Maybe blurred",
  broken: "Cannot be used",
  video: "Videos",
} as const;
const ORDERS = { name: "By name", sharp: "Least sharp first", small: "Smallest first" } as const;

export function Gallery({ media, onAgain }: { media: MediaSet; onAgain: () => void }) {
  const { folder } = media;
  const captions = media.captions.value;
  const looks = media.looks.value;
  const gone = media.gone.value;
  const [filter, setFilter] = useState<keyof typeof FILTERS>("all");
  const [order, setOrder] = useState<keyof typeof ORDERS>("name");
  const [sought, setSought] = useState("");
  const [chosen, setChosen] = useState<ReadonlySet<number>>(new Set());
  const [opened, setOpened] = useState<number | null>(null);
  const [trained, setTrained] = useState<ReadonlyMap<string, TrainedMedium> | null>(null);
  const [bucket, setBucket] = useState("");
  const alike = useMemo(() => lookAlike(looks.values()), [looks]);
  const isBlurred = (medium: number) => (looks.get(medium)?.sharpness ?? Infinity) < BLURRED;
  const problemOf = (medium: number) => looks.get(medium)?.problem ?? trained?.get(folder.media[medium]!.file)?.problem ?? null;
  const bucketOf = (medium: number) => trained?.get(folder.media[medium]!.file)?.bucket?.join(" × ") ?? null;
  const isIn: Record<keyof typeof FILTERS, (medium: number) => boolean> = {
    all: () => true,
    bare: (medium) => !captions[medium],
    chosen: (medium) => chosen.has(medium),
    twice: (medium) => alike.has(medium),
    blurred: isBlurred,
    broken: (medium) => problemOf(medium) !== null,
    video: (medium) => folder.media[medium]!.kind === "video",
  };
  const byNames = useMemo(
    () => folder.media.map((_, medium) => medium).sort((one, other) => byName(folder.media[one]!.file, folder.media[other]!.file)),
    [folder],
  );
  const present = useMemo(() => byNames.filter((medium) => !gone.has(medium)), [byNames, gone]);
  const shown = useMemo(() => {
    const words = sought.toLowerCase();
    const found = present.filter(
      (medium) =>
        isIn[filter](medium) &&
        (bucket === "" || bucketOf(medium) === bucket) &&
        (words === "" || folder.media[medium]!.file.toLowerCase().includes(words) || captions[medium]?.toLowerCase().includes(words)),
    );
    const area = (medium: number) => (folder.media[medium]!.width ?? 0) * (folder.media[medium]!.height ?? 0);
    if (order === "sharp") found.sort((one, other) => (looks.get(one)?.sharpness ?? Infinity) - (looks.get(other)?.sharpness ?? Infinity));
    else if (order === "small") found.sort((one, other) => area(one) - area(other));
    else if (filter === "twice") found.sort((one, other) => alike.get(one)! - alike.get(other)! || one - other);
    return found;
  }, [present, filter, order, sought, bucket, trained, captions, looks, alike, filter === "chosen" ? chosen : null]);
  const counts = (each: keyof typeof FILTERS) => present.filter(isIn[each]).length;
  const bare = counts("bare");
  const chosenHere = shown.filter((medium) => chosen.has(medium));
  const toggle = (medium: number) => {
    const next = new Set(chosen);
    if (!next.delete(medium)) next.add(medium);
    setChosen(next);
  };
  const buckets = new Map<string, number>();
  if (trained !== null)
    for (const medium of present) buckets.set(bucketOf(medium) ?? "none", (buckets.get(bucketOf(medium) ?? "none") ?? 0) + 1);
  return (
    <section aria-label="Pictures and videos">
      <p>
        {inWords(present.length - counts("video"), counts("video"))},{" "}
        {bare === 0 ? "all with a caption" : `${whole(bare)} without a caption`}.{folder.is_cut && " There are more than are shown here."}
      </p>
      <div class="controls">
        <label>
          <span class="hidden">Find in names and captions</span>
          <input
            type="search"
            placeholder="Find in names and captions"
            value={sought}
            onInput={(event) => setSought(event.currentTarget.value)}
          />
        </label>
        <label>
          Show{" "}
          <select value={filter} onChange={(event) => setFilter(event.currentTarget.value as keyof typeof FILTERS)}>
            {Object.entries(FILTERS).map(([word, text]) => (
              <option key={word} value={word}>
                {text} ({counts(word as keyof typeof FILTERS)})
              </option>
            ))}
          </select>
        </label>
        {buckets.size > 0 && (
          <label>
            Training size{" "}
            <select value={bucket} onChange={(event) => setBucket(event.currentTarget.value)}>
              <option value="">all</option>
              {[...buckets].sort().map(([name, count]) => (
                <option key={name} value={name === "none" ? "" : name} disabled={name === "none"}>
                  {name} ({count})
                </option>
              ))}
            </select>
          </label>
        )}
        <label>
          <span class="hidden">Order</span>
          <select value={order} onChange={(event) => setOrder(event.currentTarget.value as keyof typeof ORDERS)}>
            {Object.entries(ORDERS).map(([word, text]) => (
              <option key={word} value={word}>
                {text}
              </option>
            ))}
          </select>
        </label>
        <button type="button" disabled={media.busy.value !== null} onClick={() => media.lookOver()}>
          Find blurred and double ones
        </button>
      </div>
      <Bulk media={media} among={chosen.size > 0 ? [...chosen] : present} isChosen={chosen.size > 0} onFind={setSought} />
      <Captioner media={media} among={(chosen.size > 0 ? [...chosen] : present).filter((medium) => !captions[medium])} />
      <Trained path={folder.path} onFound={setTrained} />
      <div class="actions top">
        <span class="tools">
          <button
            type="button"
            disabled={shown.length === 0}
            onClick={() => setChosen(chosenHere.length === shown.length ? new Set() : new Set(shown))}
          >
            {chosenHere.length === shown.length && shown.length > 0 ? "Choose none" : `Choose all ${whole(shown.length)}`}
          </button>
          <span class="note" role="status">
            {media.busy.value ?? (chosen.size > 0 ? `${whole(chosen.size)} chosen` : "")}
          </span>
        </span>
        <span class="tools">
          <button type="button" disabled={media.undo.value.length === 0 || media.busy.value !== null} onClick={() => media.undoLast()}>
            {media.undo.value.length === 0 ? "Undo" : `Undo: ${media.undo.value.at(-1)!.what}`}
          </button>
          {chosen.size > 0 && (
            <Confirm
              what={`Delete ${whole(chosen.size)}`}
              question={`Delete ${chosen.size === 1 ? "this file" : `these ${whole(chosen.size)} files`} and the captions from the disk? This cannot be undone.`}
              onYes={async () => {
                await media.remove([...chosen]);
                setChosen(new Set());
              }}
            />
          )}
        </span>
      </div>
      <Problem text={media.problem.value} />
      <Grid
        media={media}
        shown={shown}
        chosen={chosen}
        onToggle={toggle}
        onOpen={setOpened}
        marks={(medium) => ({
          isBlurred: isBlurred(medium),
          isTwice: alike.has(medium),
          problem: problemOf(medium),
          bucket: bucketOf(medium),
        })}
      />
      {shown.length === 0 && <p class="note">Nothing here is like that.</p>}
      {opened !== null && (
        <Lightbox
          media={media}
          medium={opened}
          among={shown.includes(opened) ? shown : present}
          trained={trained?.get(folder.media[opened]!.file) ?? null}
          alike={present.filter((other) => other !== opened && alike.has(opened) && alike.get(other) === alike.get(opened))}
          onOpen={setOpened}
          onClose={() => {
            setOpened(null);
            if (media.gone.value.size > 0 && present.length === 0) onAgain();
          }}
        />
      )}
    </section>
  );
}

interface Marks {
  isBlurred: boolean;
  isTwice: boolean;
  problem: string | null;
  bucket: string | null;
}

interface GridProps {
  media: MediaSet;
  shown: number[];
  chosen: ReadonlySet<number>;
  onToggle: (medium: number) => void;
  onOpen: (medium: number) => void;
  marks: (medium: number) => Marks;
}

function Grid({ media, shown, chosen, onToggle, onOpen, marks }: GridProps) {
  const room = useRef<HTMLDivElement>(null);
  const [columns, setColumns] = useState(1);
  const [[first, last], setRows] = useState<[number, number]>([0, 8]);
  const [isStill, setStill] = useState(true);
  /** The place in the grid that the keyboard is at. */
  const [at, setAt] = useState(0);
  const wanted = useRef<number | null>(null);
  const rows = Math.ceil(shown.length / columns);
  useLayoutEffect(() => {
    const place = room.current!;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const look = () => {
      const top = -place.getBoundingClientRect().top;
      const from = Math.max(0, Math.floor(top / CELL_HEIGHT) - BEYOND);
      const to = Math.ceil((top + innerHeight) / CELL_HEIGHT) + BEYOND;
      setRows(([oldFrom, oldTo]) => (oldFrom === from && oldTo === to ? [oldFrom, oldTo] : [from, to]));
    };
    const scrolled = () => {
      look();
      setStill(false);
      clearTimeout(timer);
      timer = setTimeout(() => setStill(true), STILL);
    };
    const measure = () => {
      const cell = innerWidth <= NARROW.window ? NARROW.cell : CELL_WIDTH;
      const columns = Math.max(1, Math.floor((place.clientWidth + 12) / cell));
      setColumns(columns);
      place.style.setProperty("--columns", String(columns));
      look();
    };
    const observer = new ResizeObserver(measure);
    observer.observe(place);
    // What is above the grid is opened and closed.
    observer.observe(document.body);
    addEventListener("scroll", scrolled, { passive: true });
    addEventListener("resize", measure);
    measure();
    return () => {
      observer.disconnect();
      clearTimeout(timer);
      removeEventListener("scroll", scrolled);
      removeEventListener("resize", measure);
    };
  }, [shown.length]);
  useLayoutEffect(() => {
    room.current!.style.height = `${rows * CELL_HEIGHT}px`;
  }, [rows]);
  // The focus follows the arrows, once the cell exists.
  useEffect(() => {
    if (wanted.current === null) return;
    const button = room.current!.querySelector<HTMLElement>(`[data-place="${wanted.current}"]`);
    if (!button) return;
    wanted.current = null;
    button.focus({ preventScroll: true });
    button.closest("li")!.scrollIntoView({ block: "nearest" });
  });
  const move = (to: number) => {
    const next = Math.min(shown.length - 1, Math.max(0, to));
    wanted.current = next;
    setAt(next);
    const top = room.current!.getBoundingClientRect().top + Math.floor(next / columns) * CELL_HEIGHT;
    if (top < 0 || top + CELL_HEIGHT > innerHeight) scrollBy({ top: top < 0 ? top - 80 : top + CELL_HEIGHT - innerHeight + 40 });
  };
  const press = (event: KeyboardEvent, place: number) => {
    const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    if (event.key in steps) move(place + steps[event.key]!);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(shown.length - 1);
    else if (event.key === " ") onToggle(shown[place]!);
    else return;
    event.preventDefault();
  };
  const from = Math.min(first, rows) * columns;
  const to = Math.min(shown.length, Math.max(0, last) * columns);
  const stop = at >= from && at < to ? at : from;
  return (
    <div class="grid-room" ref={room}>
      <ul class="grid" style={{ transform: `translateY(${Math.min(first, rows) * CELL_HEIGHT}px)` }}>
        {shown.slice(from, to).map((medium, index) => {
          const place = from + index;
          return (
            <Cell
              key={medium}
              media={media}
              medium={medium}
              place={place}
              of={shown.length}
              isStop={place === stop}
              isChosen={chosen.has(medium)}
              isStill={isStill}
              marks={marks(medium)}
              onToggle={() => onToggle(medium)}
              onOpen={() => {
                setAt(place);
                onOpen(medium);
              }}
              onKeyDown={(event) => press(event, place)}
            />
          );
        })}
      </ul>
    </div>
  );
}

interface CellProps {
  media: MediaSet;
  medium: number;
  place: number;
  of: number;
  isStop: boolean;
  isChosen: boolean;
  isStill: boolean;
  marks: Marks;
  onToggle: () => void;
  onOpen: () => void;
  onKeyDown: (event: KeyboardEvent) => void;
}

function Cell({ media, medium, place, of, isStop, isChosen, isStill, marks, onToggle, onOpen, onKeyDown }: CellProps) {
  const { file, kind, width, height, bytes: size } = media.folder.media[medium]!;
  const caption = media.captions.value[medium];
  // A picture that was asked for once stays.
  const asked = useRef(false);
  asked.current ||= isStill;
  return (
    <li class={isChosen ? "cell chosen" : "cell"} aria-setsize={of} aria-posinset={place + 1}>
      <button
        type="button"
        class="open"
        data-place={place}
        tabIndex={isStop ? 0 : -1}
        aria-label={`${file}${caption ? `: ${caption}` : ", no caption"}${isChosen ? ", chosen" : ""}`}
        aria-keyshortcuts="Space"
        onClick={onOpen}
        onKeyDown={onKeyDown}
      >
        {kind === "video" || width === null ? (
          <span class="film" aria-hidden="true">
            {kind === "video" ? "▶" : "?"}
          </span>
        ) : (
          asked.current && <img src={media.path(medium, "/thumbnail")} alt="" decoding="async" draggable={false} />
        )}
      </button>
      <input type="checkbox" checked={isChosen} tabIndex={-1} aria-label={`Choose ${file}`} onChange={onToggle} />
      <span class="marks">
        {marks.isTwice && <span class="badge warning">looks like another</span>}
        {media.trims.value[medium] && <span class="badge info">trimmed</span>}
        {marks.isBlurred && <span class="badge warning">maybe blurred</span>}
        {marks.problem !== null && <span class="badge failed">cannot be used</span>}
      </span>
      <b title={file}>{file}</b>
      <span class="facts">
        {width && height ? `${width} × ${height}` : kind === "video" ? "video" : "unknown size"}
        {marks.bucket ? ` → ${marks.bucket}` : `, ${bytes(size)}`}
      </span>
      <span class={caption ? "said" : "said none"}>{caption || "no caption"}</span>
    </li>
  );
}
