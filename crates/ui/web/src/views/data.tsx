// The training data of a config: rows of text with the trained tokens marked, or pictures and videos with captions.
import { useEffect, useState } from "preact/hooks";
import { type Asked, type Detail, type NewJob, Refused, read, runPath, send } from "../api";
import { media as inWords, whole } from "../format";
import { Problem, Section, useTitle } from "../widgets";

interface Piece {
  text: string;
  learned: boolean;
}

interface Example {
  tokens_before: number;
  /** Those shown here. */
  tokens: number;
  tokens_after: number;
  pieces: Piece[];
}

interface Rows {
  data: string;
  rows: { tokens: number; learned: number; examples: Example[] }[];
  rows_in_epoch: number;
  whole_examples: boolean;
  truncated: number;
  left_out: number;
}

export interface Medium {
  file: string;
  kind: "image" | "moving" | "video" | "frames";
  caption_file: string | null;
  caption: string | null;
  problem: string | null;
  size: [number, number] | null;
  frames: number | null;
  bucket: [number, number] | null;
  clips: [number, number][];
}

/** A medium as a model is trained on it. */
export interface TrainedMedium extends Medium {
  /** Frames per second. */
  fps: number;
}

interface Media {
  set: number;
  folder: string;
  editable: boolean;
  fps: number;
  trigger_word: string | null;
  count: number;
  media: Medium[];
}

export type Found = { text?: Rows; media?: Media };

/** Media on a page of the list. */
const PAGE = 24;

export function DataPart({ job }: { job: NewJob }) {
  const [rows, setRows] = useState(20);
  const [found, setFound] = useState<Found | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const text = JSON.stringify({ ...job, rows });
  useEffect(() => {
    let ended = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const look = async () => {
      try {
        const asked = await send<Asked<Found>>("POST", "/api/data", JSON.parse(text));
        if (ended) return;
        setFound(asked?.found ?? null);
        setProblem(asked?.error ?? null);
      } catch (error) {
        if (ended) return;
        if (error instanceof Refused && error.status === 429) timer = setTimeout(look, 500);
        else setProblem((error as Error).message);
      }
    };
    void look();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [text]);
  return (
    <Section title="Data">
      {problem && (
        <pre class="problem" role="alert" tabIndex={0}>
          {problem}
        </pre>
      )}
      {!found && !problem && (
        <p class="note" role="status">
          Reading the data …
        </p>
      )}
      {found?.text && <Texts rows={found.text} onMore={rows < 1000 ? () => setRows(Math.min(1000, rows * 5)) : null} />}
      {found?.media && <Pictures media={found.media} onMore={rows < 1000 ? () => setRows(1000) : null} />}
    </Section>
  );
}

function Texts({ rows, onMore }: { rows: Rows; onMore: (() => void) | null }) {
  return (
    <>
      <p>{rows.data}</p>
      <p class="note">
        {rows.rows.length} of {whole(rows.rows_in_epoch)} rows, in the order of training. Tokens that are trained on are{" "}
        <mark class="learned">marked like this</mark>.
        {rows.truncated > 0 && ` ${whole(rows.truncated)} examples are longer than data.block_size and are truncated.`}
        {rows.left_out > 0 && ` ${whole(rows.left_out)} are skipped, since they have no tokens to train on.`}
      </p>
      <Lengths rows={rows} />
      <ol class="rows">
        {rows.rows.map((row, index) => (
          <li key={index}>
            <p class="note">
              row {index + 1}: {whole(row.tokens)} tokens, {whole(row.learned)} of them trained on
              {row.examples.length > 1 && `, ${row.examples.length} examples`}
            </p>
            {row.examples.map((example, place) => (
              <pre key={place} tabIndex={0} aria-label={`Row ${index + 1}`}>
                {example.tokens_before > 0 && <i>… ({whole(example.tokens_before)} tokens before this) </i>}
                {example.pieces.map((piece, number) =>
                  piece.learned ? (
                    <mark class="learned" key={number}>
                      {piece.text}
                    </mark>
                  ) : (
                    <span key={number}>{piece.text}</span>
                  ),
                )}
                {example.tokens_after > 0 && (
                  <i>
                    {" "}
                    … ({whole(example.tokens_after)} tokens {rows.whole_examples ? "are cut off" : "after this, in other rows"})
                  </i>
                )}
              </pre>
            ))}
          </li>
        ))}
      </ol>
      {onMore && rows.rows.length < rows.rows_in_epoch && (
        <button type="button" onClick={onMore}>
          More rows
        </button>
      )}
    </>
  );
}

/** The most bars, and the widths in tokens that they may have. */
const MAX_BARS = 24;
const WIDTHS = [1, 2, 5].flatMap((first) => [1, 10, 100, 1000, 10_000].map((power) => first * power)).sort((one, other) => one - other);

/** How long the examples are, and which of them are cut off or go on in another row. */
function Lengths({ rows }: { rows: Rows }) {
  // Where rows follow each other in one text, an example counts where it begins.
  const parts = rows.rows.flatMap((row) => row.examples).filter(({ tokens_before }) => rows.whole_examples || tokens_before === 0);
  if (parts.length < 2) return null;
  const lengths = parts.map(({ tokens_before, tokens, tokens_after }) => tokens_before + tokens + tokens_after);
  const longest = lengths.reduce((one, other) => Math.max(one, other));
  const width = WIDTHS.find((width) => longest / width < MAX_BARS) ?? WIDTHS.at(-1)!;
  const bars = Array.from({ length: Math.floor(longest / width) + 1 }, () => ({ whole: 0, cut: 0 }));
  for (const [index, length] of lengths.entries()) {
    const { tokens_before, tokens_after } = parts[index]!;
    bars[Math.floor(length / width)]![tokens_before + tokens_after > 0 ? "cut" : "whole"] += 1;
  }
  const most = Math.max(...bars.map(({ whole, cut }) => whole + cut));
  const cut = bars.reduce((sum, bar) => sum + bar.cut, 0);
  const middle = [...lengths].sort((one, other) => one - other)[Math.floor(lengths.length / 2)]!;
  const what = rows.whole_examples ? "cut off" : "divided between rows";
  const about = `Half of these ${whole(lengths.length)} examples have at most ${whole(middle)} tokens, the longest ${whole(longest)}; ${cut === 0 ? "none is" : `${whole(cut)} ${cut === 1 ? "is" : "are"}`} ${what}.`;
  return (
    <figure class="lengths">
      <figcaption>Lengths in tokens</figcaption>
      <svg viewBox={`0 0 ${bars.length * 10} 60`} preserveAspectRatio="none" role="img" aria-label={about}>
        {bars.map((bar, index) => {
          const [high, low] = [((bar.whole + bar.cut) / most) * 58, (bar.cut / most) * 58];
          return (
            <g key={index}>
              <title>
                {`${index * width} to ${(index + 1) * width - 1} tokens: ${bar.whole + bar.cut} examples${bar.cut > 0 ? `, ${bar.cut} ${what}` : ""}`}
              </title>
              <rect x={index * 10 + 1} y={60 - high} width="8" height={high} />
              <rect class="cut" x={index * 10 + 1} y={60 - low} width="8" height={low} />
            </g>
          );
        })}
      </svg>
      <p class="ends">
        <span>0</span>
        <span>{whole(bars.length * width)}</span>
      </p>
      <p class="note">{about}</p>
    </figure>
  );
}

function Pictures({ media, onMore }: { media: Media; onMore: (() => void) | null }) {
  const [page, setPage] = useState(0);
  const [bucket, setBucket] = useState("");
  const name = (medium: Medium) => (medium.bucket ? medium.bucket.join(" × ") : "none");
  const buckets = new Map<string, number>();
  for (const medium of media.media) buckets.set(name(medium), (buckets.get(name(medium)) ?? 0) + 1);
  const places = media.media.map((_, place) => place).filter((place) => bucket === "" || name(media.media[place]!) === bucket);
  const pages = Math.max(1, Math.ceil(places.length / PAGE));
  const at = Math.min(page, pages - 1);
  const wrong = media.media.filter((medium) => medium.problem !== null).length;
  const stills = media.media.filter(({ kind }) => kind === "image").length;
  return (
    <>
      <p>
        {media.media.length < media.count
          ? `The first ${media.media.length} of ${whole(media.count)} pictures and videos`
          : inWords(stills, media.count - stills)}{" "}
        in <code>{media.folder}</code>.{media.trigger_word !== null && ` The word "${media.trigger_word}" is added to captions.`}
        {wrong > 0 && <b class="wrong"> {wrong} cannot be used for training.</b>}
      </p>
      {!media.editable && <p class="note">These captions are read-only: to edit them, start surefoot ui with --data FOLDER.</p>}
      <div class="tools">
        <label>
          Training size{" "}
          <select
            value={bucket}
            onChange={(event) => {
              setBucket(event.currentTarget.value);
              setPage(0);
            }}
          >
            <option value="">all</option>
            {[...buckets].sort().map(([name, count]) => (
              <option key={name} value={name}>
                {name} ({count})
              </option>
            ))}
          </select>
        </label>
        <button type="button" disabled={at === 0} onClick={() => setPage(at - 1)}>
          Previous
        </button>
        <span>
          {at + 1} of {pages}
        </span>
        <button type="button" disabled={at + 1 >= pages} onClick={() => setPage(at + 1)}>
          Next
        </button>
        {onMore && media.media.length < media.count && (
          <button type="button" onClick={onMore}>
            Show more
          </button>
        )}
      </div>
      <ul class="media">
        {places.slice(at * PAGE, (at + 1) * PAGE).map((place) => (
          <MediumPart
            key={`${media.set}-${place}`}
            medium={media.media[place]!}
            path={`/api/data/${media.set}/${place}`}
            fps={media.fps}
            editable={media.editable}
          />
        ))}
      </ul>
    </>
  );
}

function MediumPart({ medium, path, fps, editable }: { medium: Medium; path: string; fps: number; editable: boolean }) {
  const [known, setKnown] = useState(medium.caption);
  const [typed, setTyped] = useState<string | null>(null);
  const [said, setSaid] = useState<string | null>(null);
  const [saved, setSaved] = useState(false);
  const save = async () => {
    if (typed === null) return;
    try {
      await send("PUT", `${path}/caption`, { text: typed, before: known });
      setKnown(typed.trim());
      setTyped(null);
      setSaid(null);
      setSaved(true);
    } catch (error) {
      setSaid((error as Error).message);
    }
  };
  const isFilm = medium.kind === "video" && /\.(mp4|m4v|webm|mov|ogv|mkv)$/i.test(medium.file);
  const isPicture = medium.kind !== "video";
  return (
    <li aria-label={medium.file}>
      {isFilm && <video src={path} controls muted loop playsInline preload="metadata" aria-label={medium.file} />}
      {isPicture && <img src={path} loading="lazy" alt={known ?? medium.file} />}
      {!isFilm && !isPicture && <p class="note">Browsers cannot play this format.</p>}
      <b class="file">{medium.file}</b>
      <p class="note">
        {medium.size ? `${medium.size.join(" × ")}` : "size unknown"}
        {medium.bucket && `, training size ${medium.bucket.join(" × ")}`}
        {medium.kind !== "image" && medium.frames !== null && medium.frames > 1 && `, ${medium.frames} frames at ${fps} per second`}
        {medium.clips.length > 0 &&
          `, clips: ${medium.clips
            .slice(0, 6)
            .map(([from, count]) => (count === 1 ? `frame ${from}` : `frames ${from} to ${from + count - 1}`))
            .join(", ")}`}
        {medium.clips.length > 6 && ` and ${medium.clips.length - 6} more`}
      </p>
      {medium.problem && known === medium.caption && <p class="wrong">{medium.problem}</p>}
      <label>
        Caption
        <textarea
          rows={3}
          value={typed ?? known ?? ""}
          readOnly={!editable || medium.caption_file === null}
          onInput={(event) => {
            setTyped(event.currentTarget.value);
            setSaved(false);
          }}
        />
      </label>
      {editable && medium.caption_file !== null && (
        <button type="button" disabled={typed === null} onClick={save}>
          {saved ? "Saved" : "Save caption"}
        </button>
      )}
      <Problem text={said} />
    </li>
  );
}

/** The data of a run's config. */
export function DataPage({ like }: { like: string }) {
  useTitle(`Data of ${like}`);
  const [exists, setExists] = useState<string | null>(null);
  useEffect(() => {
    read<Detail>(runPath(like)).then(
      () => setExists(""),
      (error: Error) => setExists(error.message),
    );
  }, [like]);
  return (
    <main>
      <p class="crumb">
        <a href={`#/run/${encodeURIComponent(like)}`}>{like}</a>
      </p>
      <h1>Training data of {like}</h1>
      {exists === "" ? <DataPart job={{ like }} /> : <Problem text={exists} />}
    </main>
  );
}
